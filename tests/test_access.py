"""Who comes in, who may start jobs, what a browser may name, what a server may listen to."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from laco import access
from laco.access import LOCAL, WORDS, Person, Settings
from laco.cli import app
from laco.cli import jobs as commands
from laco.cli.terminal import speak
from laco.errors import AccessError
from laco.evaluations import Export, Perplexity, Request, ZeroShot
from laco.jobs import LocalRunner
from laco.recipe import Calibration, Collapse, ModelRef, Recipe
from laco.store import RunStore

VIEWER = Person("vera@example.org", "viewer")
RUNNER = Person("rudi@example.org", "runner")
OTHER = Person("otto@example.org", "runner")
REQUEST = Request(recipe=Recipe(model=ModelRef(path="org/name")))
SECRETS = """
[auth]
redirect_uri = "http://localhost/oauth2callback"
cookie_secret = "a secret of some length"
client_id = "laco"
client_secret = "another"
server_metadata_url = "http://localhost/.well-known/openid-configuration"
"""


class Waiting(LocalRunner):
    """Jobs that stay queued."""

    def _start(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "store")


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No secrets, roots or home folder of whoever runs the tests."""
    for name in (access.SECRET, access.ROOTS, access.OPENED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")


def write(store: RunStore, text: str) -> Settings:
    (store.folder / access.FILE).write_text(text)
    return access.settings(store.folder)


# --- who -----------------------------------------------------------------------------------------


def test_without_settings_whoever_sits_here_may_do_everything(store: RunStore):
    assert access.settings(store.folder) == Settings()
    assert LOCAL.is_local
    assert LOCAL.may_run


def test_people_have_the_role_that_the_settings_say(store: RunStore):
    known = write(store, '[people]\n"Ada@Example.org" = "runner"\n"bob@example.org" = "viewer"')
    assert access.person(known, "ada@example.org").may_run
    assert not access.person(known, "bob@example.org").may_run
    with pytest.raises(AccessError, match=r"eve@example\.org may not use these pages"):
        access.person(known, "eve@example.org")
    others = write(store, 'others = "viewer"')
    assert access.person(others, "eve@example.org") == Person("eve@example.org", "viewer")


@pytest.mark.parametrize(
    "text",
    [
        "[people",
        "people = 3",
        '[people]\n"a@b" = "king"',
        'others = "runner"\nnonsense = 1',
        '[proxy]\nheader = "X"',
        "\0",
        "roots = 3",
    ],
)
def test_broken_settings_let_nobody_in(store: RunStore, text: str):
    with pytest.raises(AccessError, match=r"access\.toml cannot be read .*; mend it\.$"):
        write(store, text)


def test_viewer_starts_nothing_whatever_asks_for_it(store: RunStore):
    mine = Waiting(store, who=RUNNER).submit(REQUEST)
    looking = Waiting(store, who=VIEWER)
    for attempt in (
        lambda: looking.submit(REQUEST),
        lambda: looking.cancel(mine),
        lambda: looking.retry(mine),
    ):
        with pytest.raises(AccessError, match="start nothing"):
            attempt()
    assert [status.state for status in looking.jobs()] == ["queued"]


def test_job_belongs_to_who_started_it(store: RunStore):
    mine = Waiting(store, who=RUNNER).submit(REQUEST)
    assert Waiting(store).status(mine).owner == RUNNER.name
    with pytest.raises(AccessError, match=r"belongs to rudi@example\.org"):
        Waiting(store, who=OTHER).cancel(mine)
    Waiting(store, who=RUNNER).cancel(mine)
    assert Waiting(store).status(mine).state == "cancelled"
    with pytest.raises(AccessError, match=r"belongs to rudi@example\.org"):
        Waiting(store, who=OTHER).retry(mine)
    again = Waiting(store, who=RUNNER).retry(mine)
    assert Waiting(store).status(again).owner == RUNNER.name


def test_whoever_sits_at_the_machine_may_stop_any_job(store: RunStore):
    mine = Waiting(store, who=RUNNER).submit(REQUEST)
    Waiting(store).cancel(mine)
    assert Waiting(store).status(mine).state == "cancelled"
    own = Waiting(store).submit(REQUEST)
    with pytest.raises(AccessError, match="whoever runs this machine"):
        Waiting(store, who=RUNNER).cancel(own)


def test_admin_of_the_settings_may_stop_any_job(store: RunStore):
    known = write(store, '[people]\n"anna@example.org" = "admin"')
    mine = Waiting(store, who=RUNNER).submit(REQUEST)
    Waiting(store, who=access.person(known, "anna@example.org")).cancel(mine)
    assert Waiting(store).status(mine).state == "cancelled"


# --- paths ---------------------------------------------------------------------------------------


def naming(path: str) -> list[tuple[str, Request]]:
    """Every place of a request that can name a path."""
    text = f"file:{path}"
    model = ModelRef(path="org/name")
    recipe = Recipe(model=model)
    step = Collapse(target_layers=3, calibration=Calibration(source=text))
    return [
        ("model", Request(recipe=Recipe(model=ModelRef(path=path)))),
        ("calibration", Request(recipe=Recipe(model=model, steps=(step,)))),
        ("perplexity", Request(recipe=recipe, evaluations=(Perplexity(source=text),))),
        ("part", Request(recipe=recipe, evaluations=(Perplexity(source=f"{text}@heldout"),))),
        ("task", Request(recipe=recipe, evaluations=(ZeroShot(task=f"{path}.yaml"),))),
        ("data", Request(recipe=recipe, evaluations=(ZeroShot(task="piqa", data=text),))),
        ("export", Request(recipe=recipe, export=Export(folder=path))),
    ]


@pytest.mark.parametrize("place", [name for name, _ in naming("x")])
@pytest.mark.parametrize("path", ["/etc/passwd", "ROOT/../../etc", "ROOT/link/x", "~/secret"])
def test_path_elsewhere_is_refused_wherever_it_stands(
    store: RunStore, tmp_path: Path, place: str, path: str
):
    root = tmp_path / "models"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    known = Settings(roots=(root,))
    request = dict(naming(path.replace("ROOT", str(root))))[place]
    with pytest.raises(AccessError, match="lies outside of the folders that the pages may use"):
        access.check_request(request.model_dump(mode="json"), known, store.folder, RUNNER)


@pytest.mark.parametrize("place", [name for name, _ in naming("x")])
def test_path_in_a_root_is_taken(store: RunStore, tmp_path: Path, place: str):
    known = Settings(roots=(tmp_path / "models",))
    request = dict(naming(str(tmp_path / "models" / "one")))[place]
    access.check_request(request.model_dump(mode="json"), known, store.folder, RUNNER)


def test_home_is_a_root_only_without_sign_in(store: RunStore, tmp_path: Path):
    path = str(tmp_path / "home" / "model")
    access.check_path(path, Settings(), store.folder, LOCAL)
    with pytest.raises(AccessError):
        access.check_path(path, Settings(), store.folder, RUNNER)


def test_code_of_a_model_runs_for_a_browser_only_if_the_settings_say_so(store: RunStore):
    ref = ModelRef(path="org/name", trust_remote_code=True)
    document = Request(recipe=Recipe(model=ref)).model_dump(mode="json")
    with pytest.raises(AccessError, match="is not run for these pages"):
        access.check_request(document, Settings(), store.folder, RUNNER)
    allowed = Settings(trust_remote_code=True)
    access.check_request(document, allowed, store.folder, RUNNER)
    access.check_request(document, Settings(), store.folder, LOCAL)


# --- the server ----------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The Streamlit commands that `laco app` would have become."""
    seen: list[list[str]] = []
    monkeypatch.setattr(commands, "_become", seen.append)
    monkeypatch.setattr(commands.os, "chdir", lambda _place: None)
    return seen


def laco_app(store: RunStore, *words: str) -> int:
    return speak(app, ["app", "--store", str(store.folder), *words])


def option(command: list[str], name: str) -> list[str]:
    return [value for word, value in itertools.pairwise(command) if word == name]


def test_pages_are_for_this_machine_alone(store: RunStore, started: list[list[str]]):
    assert laco_app(store) == 0
    (command,) = started
    assert option(command, "--server.address") == ["127.0.0.1"]
    assert option(command, "--server.allowedHosts") == ["localhost", "127.0.0.1"]
    assert option(command, "--server.enableXsrfProtection") == ["true"]
    assert option(command, "--server.enableCORS") == ["true"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "gpu-box", ""])
def test_another_address_needs_sign_in_or_the_words(
    store: RunStore, started: list[list[str]], address: str, capsys: pytest.CaptureFixture[str]
):
    words = ("--address", address, "--host", "gpu-box")
    assert laco_app(store, *words) == 1
    assert "everyone on the network could run jobs as you" in capsys.readouterr().err
    assert laco_app(store, *words, "--open-to-network", "yes") == 1
    assert not started
    assert laco_app(store, *words, "--open-to-network", WORDS) == 0
    assert option(started[0], "--server.address") == [address]


def test_every_address_needs_a_name(store: RunStore, started: list[list[str]]):
    assert laco_app(store, "--address", "0.0.0.0", "--open-to-network", WORDS) == 1
    assert not started


def test_sign_in_by_a_provider_opens_the_address(
    store: RunStore, started: list[list[str]], tmp_path: Path
):
    secrets = tmp_path / "home" / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir()
    secrets.write_text(SECRETS)
    assert laco_app(store, "--address", "0.0.0.0", "--host", "laco.example.org") == 0
    hosts = ["localhost", "127.0.0.1", "laco.example.org"]
    assert option(started[0], "--server.allowedHosts") == hosts
    secrets.write_text(SECRETS.replace("client_secret", "client_password"))
    assert laco_app(store, "--address", "0.0.0.0", "--host", "laco.example.org") == 1


def test_sign_in_by_a_proxy_needs_its_secret(
    store: RunStore, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    write(store, '[proxy]\nheader = "X-Email"\nsecret_header = "X-Secret"')
    words = ("--address", "10.0.0.1", "--host", "laco.example.org")
    assert laco_app(store, *words) == 1
    assert laco_app(store) == 1, "nor may its headers be believed at home without it"
    monkeypatch.setenv(access.SECRET, "0123456789abcdef")
    assert laco_app(store, *words) == 0
    (mapping,) = option(started[0], "--server.trustedUserHeaders")
    assert json.loads(mapping) == {"X-Email": "email", "X-Secret": "proxy"}


def test_access_settings_are_no_secret_and_no_part_of_a_result(store: RunStore):
    write(store, '[people]\n"ada@example.org" = "runner"')
    assert store.verify() == []
    store.prune()
    assert (store.folder / access.FILE).is_file()
