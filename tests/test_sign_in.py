"""Signing in for real, and markup for real: a server, a browser, and an OpenID provider.

The server is started by `laco app` with sign-in configured, on a store whose runs and jobs carry
names that would be scripts and pictures. Skipped, in one line, where there is no Chromium.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import Request as Asking
from urllib.request import urlopen

import pytest

from laco.access import FILE, VIEWING
from laco.evaluations import Perplexity, Request
from laco.jobs import LocalRunner
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import RunStore
from tests import oidc
from tests.browsing import CHROMIUM, PATIENCE, ROOT, wait_until_up
from tests.pages import prepared

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

SCRIPT = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
PICTURE = "![x](http://evil.example/x.png) [y](javascript:alert(1)) :red[z]"
NAME = f"{PICTURE} {SCRIPT}"
PAGES = ("", "model", "similarity", "collapse", "sparsify", "compensate", "evaluate", "compare")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not Path(CHROMIUM).is_file(),
        reason="no Chromium on this machine (apt-get install chromium): browser tests skipped",
    ),
]


class Waiting(LocalRunner):
    """Jobs that stay queued."""

    def _start(self) -> None:
        pass


@dataclass
class Server:
    """The running app, its log, its store and its provider."""

    url: str
    log: Path
    store: RunStore
    provider: oidc.Provider


def fill(folder: Path) -> RunStore:
    """A store in which everything that has a name has an evil one."""
    model = prepared.model_folder(folder / "models" / NAME.replace("/", "∕"))
    prepared.fill(folder / "store", model)
    store = RunStore(folder / "store")
    recipe = Recipe(model=ModelRef(path=str(model), revision=NAME[:200], dtype="float32"))
    recipe = recipe.then(Drop(layers=(1,)))
    store.save(recipe.key, recipe, [], lambda _folder: None)
    store.add_metrics(recipe.key, Perplexity(source=NAME), prepared.metrics(20.0, 29, 0.1))
    request = Request(recipe=recipe, evaluations=(Perplexity(source=NAME),))
    jobs = Waiting(store)
    job = jobs.submit(request, label=NAME, anyway=True)
    with store.index.transaction() as index:
        index.execute(
            "UPDATE jobs SET state = 'failed', error = ?, message = ? WHERE id = ?",
            (f"{NAME}\n{NAME}", NAME, job),
        )
    (store.folder / "jobs" / job / "log.txt").write_text(NAME)
    return store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("signed")
    store = fill(folder)
    (store.folder / FILE).write_text(
        f'roots = ["{folder / "models"}"]\n[people]\n"vera@example.org" = "viewer"\n'
        '"rudi@example.org" = "runner"\n'
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with oidc.provider() as provider:
        secrets = folder / "home" / ".streamlit" / "secrets.toml"
        secrets.parent.mkdir(parents=True)
        secrets.write_text(
            f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\n'
            'cookie_secret = "a secret that signs cookies"\n'
            f'client_id = "{oidc.CLIENT}"\nclient_secret = "{oidc.SECRET}"\n'
            f'server_metadata_url = "{provider.metadata_url}"\n'
        )
        command = [sys.executable, "-m", "laco", "app", "--port", str(port), "--store"]
        log = folder / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, str(store.folder)],
                cwd=ROOT,
                env={**os.environ, "HOME": str(folder / "home"), "HF_TOKEN": "hf_verysecret"},
                stdout=out,
                stderr=out,
            )
        try:
            wait_until_up(f"http://127.0.0.1:{port}/_stcore/health")
            yield Server(f"http://127.0.0.1:{port}", log, store, provider)
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh visitor; fails at the end if a script ran or anything outside was asked for."""
    made = browser.new_context(viewport={"width": 1400, "height": 1300})
    made.set_default_timeout(PATIENCE)
    asked: set[str] = set()
    dialogs: list[Any] = []
    made.on("request", lambda request: asked.add(request.url))

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    made.on("dialog", note)
    yield made
    made.close()
    web = {urlparse(url).hostname for url in asked if url.startswith(("http", "ws"))}
    assert web == {"127.0.0.1"}
    assert not dialogs


def sign_in(context: BrowserContext, server: Server, email: str) -> Page:
    """A page of whoever signs in as this."""
    server.provider.email = email
    page = context.new_page()
    page.goto(server.url)
    page.get_by_role("button", name="Log in").click()
    return page


def calm(page: Page) -> None:
    """Wait until the page is drawn."""
    page.locator('[data-test-script-state="notRunning"]').wait_for(timeout=PATIENCE)


def test_nothing_is_shown_before_signing_in(server: Server, context: BrowserContext):
    page = context.new_page()
    for name in ("", "jobs", "compare"):
        page.goto(f"{server.url}/{name}")
        page.get_by_role("button", name="Log in").wait_for()
        calm(page)
        assert page.locator("h1").count() == 0
        assert page.locator('[data-testid="stDataFrame"]').count() == 0


def test_viewer_signs_in_and_can_start_nothing(server: Server, context: BrowserContext):
    page = sign_in(context, server, "vera@example.org")
    page.get_by_text("vera@example.org, viewer").wait_for()
    button = page.get_by_role("button", name="Run the demo")
    playwright.expect(button).to_be_disabled(timeout=PATIENCE)
    button.hover(force=True)
    page.get_by_text(VIEWING).first.wait_for()


def test_runner_signs_in_and_owns_the_job(server: Server, context: BrowserContext):
    page = sign_in(context, server, "rudi@example.org")
    page.get_by_text("rudi@example.org, runner").wait_for()
    assert page.get_by_role("button", name="Run the demo").is_enabled()


def test_stranger_signs_in_and_stays_outside(server: Server, context: BrowserContext):
    page = sign_in(context, server, "eve@example.org")
    page.get_by_text("eve@example.org may not use these pages").wait_for()
    assert page.locator("h1").count() == 0


def test_names_are_never_scripts_or_pictures(server: Server, context: BrowserContext):
    page = sign_in(context, server, "vera@example.org")
    page.get_by_text("vera@example.org, viewer").wait_for()
    model = next(run.recipe.model.path for run in server.store.runs() if run.recipe.steps)
    for name in (*PAGES, "jobs"):
        page.goto(f"{server.url}/{name}?model={model.replace('#', '%23').replace('?', '%3F')}")
        page.locator("h1").wait_for()
        calm(page)
        assert page.title() == "laco"
        assert page.locator('img[src*="evil.example"], img[src="x"]').count() == 0
        assert page.locator('a[href^="javascript"]').count() == 0
        for link in page.locator('a[href*="evil.example"]').all():
            assert link.inner_text() == link.get_attribute("href"), "a link says where it leads"
    page.get_by_text("onerror").first.wait_for()  # the names are there, as text


def status_of(server: Server, **headers: str) -> int:
    """The status that a browser's request for the page's WebSocket gets, with these headers."""
    place = urlparse(server.url)
    told = {
        "Host": place.netloc,
        "Origin": server.url,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    lines = ["GET /_stcore/stream HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as line:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(line.recv(64).split()[1])


def test_other_hosts_and_origins_are_turned_away(server: Server):
    assert status_of(server) == 101
    assert status_of(server, Host="evil.example") == 403
    assert status_of(server, Origin="http://evil.example") == 403


def test_upload_without_its_token_is_turned_away(server: Server):
    asking = Asking(f"{server.url}/_stcore/upload_file/a/b", data=b"x", method="PUT")
    with pytest.raises(HTTPError) as refused:
        urlopen(asking, timeout=10)
    with refused.value as answer:
        assert answer.code in (400, 403)


def test_server_listens_to_this_machine_alone(server: Server):
    port = urlparse(server.url).port
    with socket.socket() as other:
        other.settimeout(5)
        with pytest.raises(OSError):  # noqa: PT011 - any way of not being reached will do
            other.connect((own_address(), port))


def own_address() -> str:
    """The address of this machine on its network; another of the loopback's where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        found = str(probe.getsockname()[0])
    return found if not found.startswith("127.") else "127.0.0.2"


def test_log_holds_no_secret(server: Server):
    text = server.log.read_text()
    for secret in ("hf_verysecret", oidc.SECRET, "signs cookies"):
        assert secret not in text
