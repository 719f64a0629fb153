"""Who comes to a page: signed in or not, viewer or runner; what an address may name; markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from laco import access, annotations
from laco.access import Person
from laco.demo import demo_requests
from laco.errors import AccessError
from laco.recipe import Drop, ModelRef, Recipe
from laco.ui import frame, person, session
from laco.ui.plain import caption, code, plain

PAGES = tuple(page.name for page in frame.PAGES)
STARTS = {  # the buttons that start or stop something
    "home": "Run the demo",
    "collapse": "Start",
    "evaluate": "Start what is missing",
    "try_it": "Write",
    "jobs": "Cancel",
}
VIEWER = Person("vera@example.org", "viewer")
HTML = "<img src=x onerror=alert(1)>"
PICTURE = "![x](http://evil.example/x.png)"


@pytest.fixture
def viewing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks may look only."""
    monkeypatch.setattr(person, "person", lambda: VIEWER)
    monkeypatch.setattr(session, "person", lambda: VIEWER)


def settings(text: str) -> None:
    (session.store().folder / access.FILE).write_text(text)


# --- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", STARTS)
def test_viewer_sees_the_button_and_why_it_cannot_be_pressed(
    page: str, open_page, keys, waiting, viewing
):
    waiting.submit(demo_requests()[0], label="A job")
    at = open_page(page)
    buttons = [button for button in at.button if button.label == STARTS[page]]
    assert buttons
    assert all(button.disabled and button.help == access.VIEWING for button in buttons)


def test_viewer_sees_the_devices_and_chooses_none(open_page, viewing, waiting):
    at = open_page("jobs")
    assert not at.exception
    assert "jobs at once" in at.dataframe[-1].value.columns
    assert not at.multiselect


def test_viewer_starts_nothing_even_past_the_button(viewing, waiting):
    with pytest.raises(AccessError, match="start nothing"):
        session.submit(*demo_requests())
    assert waiting.jobs() == []


def test_viewer_is_named_beside_every_page(open_page, viewing):
    at = open_page("home")
    assert any("vera@example.org, viewer" in element.value for element in at.sidebar.text)


def test_job_says_whose_it_is(open_page, waiting, monkeypatch: pytest.MonkeyPatch):
    waiting.who = Person("rudi@example.org", "runner")
    waiting.submit(demo_requests()[0], label="A job")
    at = open_page("jobs")
    assert list(at.dataframe[0].value["by"]) == ["rudi@example.org"]


# --- signing in ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_who_has_not_signed_in_sees_the_way_in_and_nothing_else(
    page: str, open_page, keys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(person, "has_provider", lambda: True)
    monkeypatch.setattr(person, "claims", lambda: {"is_logged_in": False})
    at = open_page(page)
    assert [button.label for button in at.button] == ["Log in"]
    assert at.error[0].value == "These pages are for those who sign in."
    assert not at.title
    assert not at.dataframe


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"email": "eve@example.org"}, "eve@example.org may not use these pages"),
        ({"email": "ada@example.org", "email_verified": False}, "no verified e-mail"),
        ({}, "no verified e-mail"),
    ],
)
def test_who_is_not_named_may_not_come_in(
    claims: dict, sentence: str, open_page, monkeypatch: pytest.MonkeyPatch
):
    settings('[people]\n"ada@example.org" = "runner"')
    monkeypatch.setattr(person, "has_provider", lambda: True)
    monkeypatch.setattr(person, "claims", lambda: {"is_logged_in": True, **claims})
    at = open_page("home")
    assert sentence in at.error[0].value
    assert not at.title


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"email": "ada@example.org"}, "through their proxy only"),
        ({"email": "ada@example.org", "proxy": "guess"}, "through their proxy only"),
        ({"proxy": "0123456789abcdef"}, "names nobody"),
        ({"email": "ada@example.org", "proxy": "0123456789abcdef"}, None),
    ],
)
def test_proxys_word_counts_only_with_its_secret(
    claims: dict, sentence: str | None, open_page, monkeypatch: pytest.MonkeyPatch
):
    settings(
        '[people]\n"ada@example.org" = "runner"\n'
        '[proxy]\nheader = "X-Email"\nsecret_header = "X-Secret"'
    )
    monkeypatch.setenv(access.SECRET, "0123456789abcdef")
    monkeypatch.setattr(person, "claims", lambda: claims)
    at = open_page("home")
    if sentence is None:
        assert at.title[0].value == "laco"
        assert "0123456789abcdef" not in str(at.main) + str(at.sidebar)
    else:
        assert sentence in at.error[0].value
        assert not at.title


def test_server_that_others_reach_shows_nothing_without_sign_in(
    open_page, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(person, "address", lambda: "0.0.0.0")
    at = open_page("home")
    assert "everyone on the network could run jobs as you" in at.error[0].value
    assert not at.title
    monkeypatch.setenv(access.OPENED, access.WORDS)
    assert open_page("home").title[0].value == "laco"


def test_broken_settings_close_the_pages(open_page):
    settings("people = 3")
    at = open_page("home")
    assert "access.toml cannot be read" in at.error[0].value
    assert not at.title


# --- addresses -----------------------------------------------------------------------------------

ADDRESSES = [
    ("model", {"model": "/etc"}),
    ("model", {"model": "../../../../../../etc/passwd"}),
    ("model", {"model": "~root/.ssh"}),
    ("model", {"model": "a\0b"}),
    ("model", {"model": "x" * 100_000}),
    ("model", {"model": HTML}),
    ("model", {"model": "k1-/../../.."}),
    ("model", {"model": "k1-" + "f" * 40}),
    ("model", {"model": "bundled:gpt5"}),
    ("model", {"model": ["a", "b"]}),
    ("model", {"model": "org/name@../../x"}),
    ("model", {"source": "Nowhere", "dtype": "float8"}),
    ("similarity", {"range": ["9", "x"]}),
    ("similarity", {"range": ["-5", "99999999999999999999"]}),
    ("similarity", {"range": "3", "measure": "telepathy", "tab": HTML}),
    ("collapse", {"span": "9:3"}),
    ("collapse", {"span": "0:999999"}),
    ("collapse", {"span": HTML}),
    ("collapse", {"span": "²:³", "preset": "../../etc", "tab": "x"}),
    ("sparsify", {"preset": "x" * 5000, "tab": "Nonsense"}),
    ("compensate", {"how": "by magic", "preset": "\ud7ff", "tab": "\0"}),
    ("evaluate", {"runs": ["k1-", "'; DROP TABLE jobs; --"]}),
    ("evaluate", {"runs": "x" * 100_000}),
    ("compare", {"runs": ["k1-0", "k1-0", "", "\0"], "base": "k1-"}),
    ("compare", {"runs": HTML, "base": HTML, "quality": HTML, "cost": "x", "diff": "maybe"}),
    ("try_it", {"text": "../../../etc", "prompt": HTML, "tokens": "-1"}),
    ("try_it", {"text": "\0", "runs": ["k1-"] * 9, "prompt": "x" * 100_000}),
    ("jobs", {"job": "../../../etc/passwd"}),
    ("jobs", {"job": HTML}),
    ("home", {"nonsense": "1", "model": ""}),
]


@pytest.mark.parametrize(
    ("page", "query"),
    ADDRESSES,
    ids=[f"{page}-{index}" for index, (page, _) in enumerate(ADDRESSES)],
)
def test_bad_address_is_a_page_with_one_sentence_at_most(page: str, query: dict, open_page, keys):
    at = open_page(page, **query)
    told = [element.value for element in (*at.error, *at.warning)]
    assert at.title
    assert len(told) <= 3
    assert all(len(text) < 1500 and "\n" not in text and "Traceback" not in text for text in told)


@pytest.mark.parametrize("address", ["/etc", "../../../../../../etc", "~daemon", "/etc/x.gguf"])
def test_address_that_leaves_the_roots_is_refused(address: str, open_page):
    at = open_page("model", model=address)
    assert "lies outside of the folders" in at.warning[0].value
    assert session.BUNDLED in at.query_params["model"]


# --- markup --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [HTML, PICTURE, r"\[a](http://evil.example)", "a\n# b", ":red[x]"])
def test_text_of_others_is_never_markup(text: str):
    shown = plain(text)
    assert "\n" not in shown
    for place, letter in enumerate(shown):
        if letter == "[":
            before = shown[:place]
            assert (len(before) - len(before.rstrip("\\"))) % 2 == 1, (
                "an even number leaves it open"
            )
    assert "<" not in caption(text)


@pytest.mark.parametrize("text", ["a`b", "``", "`", "a ``` b`", f"`{PICTURE}`"])
def test_backquotes_do_not_end_code(text: str):
    shown = code(text)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert shown.endswith(fence)
    assert fence not in shown[len(fence) : -len(fence)]


def fill_in(at: AppTest, text: str) -> None:
    """Every field of a page that takes text, filled with this."""
    for field in (*at.text_input, *at.text_area):
        field.set_value(text)


@pytest.mark.parametrize("page", PAGES)
def test_no_field_makes_markup_of_what_is_typed(page: str, open_page, keys):
    at = open_page(page)
    for choice in at.segmented_control if hasattr(at, "segmented_control") else ():
        if "Hub" in getattr(choice, "options", ()):
            choice.set_value("Hub")
    at.run()
    fill_in(at, HTML + PICTURE)
    for button in at.button:
        if button.label == "Use this model":
            button.click()
    at.run()
    assert not at.exception
    check_shown(at)


def check_shown(at: AppTest) -> None:
    """Nothing on the page is HTML of ours, or a picture of theirs."""
    for element in (*at.markdown, *at.caption, *at.error, *at.warning, *at.info, *at.success):
        assert not getattr(element, "allow_html", False)
        bare = element.value.replace(r"\[", "")
        assert "![" not in bare or "`" in bare, element.value


def test_names_of_runs_and_jobs_are_no_markup(open_page, keys, waiting, model: Path):
    evil = Recipe(model=ModelRef(path=str(model.parent / f"{PICTURE.replace('/', '')} {HTML[:4]}")))
    waiting.submit(demo_requests()[0].model_copy(update={"recipe": evil}), label=PICTURE + HTML)
    session.store().add_model(evil.key, evil)
    smaller = evil.then(Drop(layers=(1,)))
    session.store().save(smaller.key, smaller, [], lambda folder: None)
    said = {"name": PICTURE + HTML, "note": PICTURE + HTML, "tags": [PICTURE]}
    annotations.annotate(session.store(), smaller.key, **said)
    for page in PAGES:
        check_shown(open_page(page))


def test_no_page_allows_html_and_none_takes_a_file():
    root = Path(__file__).parents[2]
    sources = [*root.glob("pages/*.py"), *root.glob("laco/ui/*.py"), root / "app.py"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    for word in ("unsafe_allow_html", "st.html", "iframe", "components", "file_uploader", "st.App"):
        assert word not in text
