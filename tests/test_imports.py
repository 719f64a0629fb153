"""Modules come in without a search for garbage, and afterwards all is as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from laco.imports import imported

COUNTED = """
import gc
from laco.imports import imported

searches = []
gc.callbacks.append(lambda phase, _: searches.append(phase))
json, ast = imported({names})
during = len(searches)
gc.collect()
print(json.__name__, ast.__name__, during, len(searches) > during, gc.isenabled())
"""


def test_no_garbage_is_looked_for_while_modules_come_in():
    program = COUNTED.format(names='"pandas", "ast"')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["pandas", "ast", "0", "True", "True"], done.stderr


def test_a_module_that_fails_leaves_the_collection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "spoilt.py").write_text("raise ValueError('spoilt')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="spoilt"):
        imported("spoilt")
    assert gc.isenabled()


def test_whoever_had_turned_it_off_finds_it_off():
    gc.disable()
    try:
        assert imported("ast")[0].__name__ == "ast"
        assert not gc.isenabled()
    finally:
        gc.enable()
