"""The command line as people use it: a model folder, looked at, collapsed, measured, compared.

All is offline, on a tiny model whose layers 2 to 4 hardly matter.
"""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laco.cli import app
from laco.cli.terminal import speak
from tests import tiny

TEXT = "file:text.txt"
MEASURES = (
    f"perplexity:{TEXT}@heldout,window=32,windows=4",
    f"kl:{TEXT}@heldout,window=32,windows=4",
    "footprint",
)


class Workplace:
    """A folder with a model, a text and a store, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny.save(tiny.redundant(), folder / "model")
        words = random.Random(0)
        lines = (
            " ".join(words.choices(["the", "cat", "ran", "over", "a", "hill"], k=60))
            for _ in range(100)
        )
        (folder / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")

    def laco(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LACO_STORE": str(self.folder / "store")}
        return subprocess.run(
            [sys.executable, "-m", "laco", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def document(self, *arguments: str) -> Any:
        done = self.laco(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def recipe(self, *steps: dict[str, Any]) -> str:
        document = {"model": {"path": "model"}, "steps": list(steps)}
        (self.folder / "recipe.json").write_text(json.dumps(document), encoding="utf-8")
        return "recipe.json"


def value(document: dict[str, Any], name: str) -> float:
    return next(m["value"] for m in document["metrics"] if m["name"].startswith(name))


def test_main_job_from_the_command_line(tmp_path: Path):
    """Each command is a process of its own."""
    place = Workplace(tmp_path)
    card = place.document("inspect", "model")
    assert (card["layers"], card["capabilities"]["collapse"]["ok"]) == (6, True)

    found = place.document(
        "similarity", "model", "--corpus", f"{TEXT}@calibration", "--windows", "4",
        "--length", "32", "--out", "map.csv",
    )  # fmt: skip
    least = sorted(range(6), key=lambda layer: found["influence"][layer])[:3]
    assert sorted(least) == [2, 3, 4]
    assert found["depths"] == len(found["matrix"]) == 7
    table = (place.folder / "map.csv").read_text(encoding="utf-8")
    assert len(list(csv.reader(table.splitlines()))) == 1 + 7 * 7

    text = {"source": f"{TEXT}@calibration", "windows": 2, "length": 32}
    recipe = place.recipe({"kind": "collapse", "target_layers": 5, "calibration": text})
    evaluations = [word for spec in MEASURES for word in ("--evaluate", spec)]
    done = place.document("run", recipe, *evaluations)
    assert (value(done, "layers"), done["steps"][0]["kind"]) == (5, "collapse")
    assert set(done["steps"][0]["report"]["removed"]) <= {2, 3, 4}
    assert value(done, "kl[") < 1e-3
    assert list(Path(done["path"]).glob("model*.safetensors"))

    original = place.document("evaluate", "model", *MEASURES[::2])
    rows = place.document("compare", original["key"], done["key"])
    (row,) = [r for r in rows if r["metric"].startswith("perplexity") and r["delta"] is not None]
    assert row["delta"] == pytest.approx(value(done, "perp") - value(original, "perp"))
    assert row["badge"] == ""

    (difference,) = place.document("diff", original["key"], done["key"])
    assert difference["path"] == "steps.0"
    assert {run["key"] for run in place.document("runs")} >= {original["key"], done["key"]}
    assert place.document("store", "verify") == {"problems": []}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`laco run` of some steps, in this process, on a workplace of its own."""
    place = Workplace(tmp_path)

    def run_steps(*steps: dict[str, Any]) -> tuple[int, str, str]:
        path = tmp_path / place.recipe(*steps)
        where = ("--store", str(tmp_path / "store"), "--model", str(tmp_path / "model"))
        status = speak(app, ["run", str(path), "--json", "--device", "cpu", *where])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run_steps


DROP = {"kind": "drop", "layers": [3]}


def test_finished_steps_are_not_done_again(run: Callable[..., tuple[int, str, str]]):
    first = json.loads(run(DROP)[1])
    second = json.loads(run(DROP, {"kind": "drop", "layers": [2]})[1])
    assert [step["cached"] for step in first["steps"]] == [False]
    assert [step["cached"] for step in second["steps"]] == [True, False]


@pytest.mark.parametrize(
    ("step", "sentence"),
    [({"kind": "drop", "layers": [6]}, "6"), ({"kind": "merge", "spans": [[4, 9]]}, "9")],
)
def test_range_past_the_end_is_refused_and_leaves_nothing(
    run: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    step: dict[str, Any],
    sentence: str,
):
    run(DROP)
    before = sorted((tmp_path / "store").rglob("artifacts/**"))
    status, out, err = run(step)
    assert (status, out) == (1, "")
    assert sentence in err.splitlines()[-1]
    assert sorted((tmp_path / "store").rglob("artifacts/**")) == before
