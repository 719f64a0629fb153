"""Bad input: one sentence and status 1 or 2, no traceback, no hang, and nothing of it is run.

What is wrong is in `malformed.py`. Each case has a few seconds, enforced by an alarm, and a limit
of memory that it may take on.
"""

from __future__ import annotations

import re
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from laco.cli import app
from laco.cli.terminal import speak
from tests import tiny
from tests.malformed import CASES, Case

SECONDS = 20  # of the clock; each takes far less, unless the machine has much to do
BYTES = 1_500_000_000  # more than the process held before
PROGRESS = re.compile(r"\s*\d+ %  |Stopping")
MARK = Path("/tmp/laco-was-here")  # made by whatever malformed input gets run


class TooLong(BaseException):
    """A case took longer than it may; no `except Exception` swallows this."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends with `TooLong` after so many seconds."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with nothing wrong."""
    return tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path_factory.mktemp("sound") / "model")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_one_sentence(
    case: Case,
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("LACO_STORE", str(tmp_path / "store"))
    folder = tmp_path / "input"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.rmtree(MARK, ignore_errors=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with limited(SECONDS):
        words = case.make(folder, sound)
        status = speak(app, words)
    out, err = capsys.readouterr()
    assert not MARK.exists(), "what was malformed has been run"
    assert status == case.status, err
    assert out == ""
    said = [line for line in err.splitlines() if not PROGRESS.match(line)]
    assert re.search(case.says, said[-1]), err
    if status == 1:
        assert len(said) == 1 or (words[0] == "run" and len(said) == 2), err  # what it will do
        assert said[-1].endswith(".")
        assert len(said[-1]) < 1000
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
    assert grown < BYTES
