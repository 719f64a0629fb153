"""What the page tests share: a store that is empty or filled, and jobs that nobody starts."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest

from laco.jobs import LocalRunner
from laco.ui import session
from tests.pages import prepared

APP = str(Path(__file__).parents[2] / "app.py")
Opener = Callable[..., AppTest]


class Waiting(LocalRunner):
    """Jobs that stay queued, since no scheduler is started for them."""

    def _start(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty store of this test's own, whose jobs wait."""
    monkeypatch.setattr(session, "LocalRunner", Waiting)
    monkeypatch.setenv("LACO_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("LACO_ROOTS", str(tmp_path.parents[1]))  # the models of all tests
    yield
    st.cache_resource.clear()
    st.cache_data.clear()


@pytest.fixture(autouse=True)
def frame_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run goes through app.py, as on a server on which it has run once before."""
    original = PagesManager.__init__

    def through_app(self: PagesManager, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        PagesManager.uses_pages_directory = False

    monkeypatch.setattr(PagesManager, "__init__", through_app)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A model and a filled store, made once: their folders, and the keys of the runs."""
    folder = tmp_path_factory.mktemp("template")
    model = prepared.model_folder(folder / "my-model")
    return model, folder / "store", prepared.fill(folder / "store", model)


@pytest.fixture
def model(template: tuple[Path, Path, dict[str, str]]) -> Path:
    """The folder of the model that the filled store's runs are of."""
    return template[0]


@pytest.fixture
def keys(template: tuple[Path, Path, dict[str, str]], tmp_path: Path) -> dict[str, str]:
    """Fill this test's store; the keys of its runs by name."""
    shutil.copytree(template[1], tmp_path / "store", dirs_exist_ok=True)
    return template[2]


@pytest.fixture
def waiting() -> Waiting:
    """The jobs of this test's store."""
    return Waiting(session.store())


@pytest.fixture
def open_page() -> Opener:
    def open_page(name: str, **query: str | list[str]) -> AppTest:
        """The page as it stands after its first run; fails if anything was raised."""
        at = AppTest.from_file(APP, default_timeout=30)
        for key, value in query.items():
            at.query_params[key] = value
        at.switch_page(f"pages/{name}.py")
        at.run()
        assert not at.exception, [error.value for error in at.exception]
        return at

    return open_page
