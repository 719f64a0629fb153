"""What the code never does, looked for in the code; and that no secret reaches a result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from laco import annotations, engine, models
from laco.context import Context
from laco.evaluations import Export, Footprint, Request
from laco.jobs import InlineRunner
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import RunStore
from tests import tiny

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "laco").rglob("*.py"), *(ROOT / "pages").glob("*.py"), ROOT / "app.py"])
TOKEN = "hf_ThisMustNeverBeWritten"
RUNS_CODE = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "subprocess.getoutput"}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER)\b")
OURS = {  # what is put into statements: names of tables and columns, and places for values
    *("_HERE", "_LIVE", "LIVE", "column", "table", "assignments", "condition", "names", "places"),
    "', '.join('?' * len(some))",
}


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if isinstance(node, kind):
                yield file, node


def test_nothing_is_unpickled():
    """But by a process of several that work together, whose first hands it its part of the work.

    The file lies in a folder that the first has just made, for nobody else to open.
    """
    for file, node in (*nodes(ast.Import), *nodes(ast.ImportFrom)):
        if file == ROOT / "laco" / "ranks.py":
            continue
        names = [alias.name for alias in node.names]  # type: ignore[attr-defined]
        names.append(getattr(node, "module", None) or "")
        assert not RUNS_CODE & {name.partition(".")[0] for name in names}, file


def test_no_shell_and_no_text_is_run():
    for file, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        assert ast.unparse(node.func) not in CALLS, file
        for keyword in node.keywords:
            assert keyword.arg != "shell", file
            assert keyword.arg != "weights_only", file


def test_remote_code_is_never_on_by_itself():
    for file, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        for keyword in node.keywords:
            if keyword.arg == "trust_remote_code":
                assert ast.unparse(keyword.value) != "True", file
    assert ModelRef(path="org/name").trust_remote_code is False


def test_statements_hold_names_of_ours_alone():
    seen = set()
    for file, node in nodes(ast.JoinedStr):
        assert isinstance(node, ast.JoinedStr)
        text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        if SQL.match(text):
            put = {ast.unparse(p.value) for p in node.values if isinstance(p, ast.FormattedValue)}
            assert put <= OURS, (file.name, put - OURS)
            seen |= put
    assert "_LIVE" in seen, "statements are no longer found, so nothing was checked"


def holding(folder: Path, word: bytes) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and word in file.read_bytes()]


def test_token_is_in_no_result_export_or_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "LACO_PROXY_SECRET"):
        monkeypatch.setenv(name, TOKEN)
    folder = tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "model")
    ref = models.pin(ModelRef(path=str(folder)), tmp_path)
    request = Request(
        recipe=Recipe(model=ref, steps=(Drop(layers=(1,)),)),
        evaluations=(Footprint(),),
        export=Export(folder=str(tmp_path / "export")),
    )
    store = RunStore(tmp_path / "store")
    runner = InlineRunner(store, lambda request, store, _: engine.run(request, store, Context()))
    job = runner.submit(request, anyway=True)
    assert runner.status(job).state == "done", runner.log(job)
    assert (tmp_path / "export" / "config.json").is_file()
    said = annotations.read(store, request.recipe.key)
    assert [one.folder for one in said.exports] == [str(tmp_path / "export")]
    assert holding(tmp_path, ref.revision.encode()), "files are no longer searched"
    assert holding(tmp_path, TOKEN.encode()) == []
