"""Tests reach no model hub and use one thread each; both are settled before anything imports.

All tests that want a browser share one Chromium in a process: Playwright can be started only once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("LACO_SHARE", None)  # results of tests are nobody's


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no garbage collection has to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; whoever asks for it is skipped where there is none."""
    from tests.browsing import CHROMIUM, QUIET

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()
