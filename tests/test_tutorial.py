"""`docs/tutorial.md` is followed to the letter: files written, commands run, answers compared.

Blocks are taken in their order: `json NAME` is a file, `sh` are commands, and `text` are lines of
what the commands before it said, with numbers that may be a few per cent off.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laco import models
from laco.cli import app
from laco.recipe import ModelRef
from laco.reference import BUNDLED

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
CACHE = Path(__file__).parents[1] / "cache"  # where other tests have converted the bundled model
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")
TOLERANCE = 0.05


def parts(line: str) -> tuple[list[str], list[float]]:
    """The words of a line without its numbers, and the numbers."""
    numbers = [float(text.replace(",", "").replace("−", "-")) for text in NUMBER.findall(line)]
    return NUMBER.sub("#", line).split(), numbers


def is_said(expected: str, said: str) -> bool:
    """Whether some line has the same words, and the same numbers within the tolerance.

    A line that ends in … is the beginning of one.
    """
    words, numbers = parts(expected.removesuffix("…"))
    for line in said.splitlines():
        others, found = parts(line)
        if expected.endswith("…"):
            others, found = others[: len(words)], found[: len(numbers)]
        near = pytest.approx(numbers, rel=TOLERANCE, abs=0.002)
        if others == words and found == near:
            return True
    return False


@pytest.mark.filterwarnings("ignore")
def test_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    models.folder_of(models.pin(ModelRef(path=BUNDLED), CACHE), CACHE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LACO_STORE", str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "models").symlink_to(CACHE / "models")
    said, checked = "", 0
    for kind, name, body in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        if kind == "json":
            (tmp_path / name).write_text(body, encoding="utf-8")
        elif kind == "sh":
            commands = [shlex.split(line, comments=True) for line in body.splitlines()]
            runs = [(line, CliRunner().invoke(app, line[1:])) for line in commands if line]
            for line, run in runs:
                assert line[0] == "laco"
                assert run.exit_code == 0, f"{line}: {run.output}"
            said = "\n".join(run.stdout for _, run in runs)
        elif kind == "text":
            for line in filter(str.strip, body.splitlines()):
                assert is_said(line, said), f"not said: {line}\n{said}"
                checked += 1
    assert checked == 9
