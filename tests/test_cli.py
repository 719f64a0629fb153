"""The command line: status, JSON, one sentence for an error, and what people type."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from laco import (
    Collapse,
    Compensate,
    Divergence,
    Drop,
    Export,
    Footprint,
    Latency,
    Metric,
    ModelRef,
    Perplexity,
    Prune,
    Recipe,
    Request,
    Wanda,
    ZeroShot,
)
from laco.cli import app
from laco.cli.arguments import override, read_evaluations, read_model, read_recipe, read_source
from laco.cli.options import Wanted, grouped
from laco.cli.terminal import speak, write_file
from laco.errors import Cancelled, ExportError, RecipeError, StoreError
from laco.store import RunStore

MODEL = ModelRef(path="org/name", revision="0123abc", dtype="float32")
ORIGINAL = Recipe(model=MODEL)
SMALLER = ORIGINAL.then(Drop(layers=(3,)))
STEP = {"kind": "drop", "seconds": 1.5, "cached": False, "peak_bytes": 0, "report": {}}


def write_model(folder: Path) -> None:
    (folder / "config.json").write_text("{}", encoding="utf-8")


def perplexity(value: float) -> list[Metric]:
    return [Metric("perplexity[text]", value, unit="", better="lower", stderr=0.1)]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Two runs with perplexities 20 and 25, made without any model."""
    made = RunStore(tmp_path / "store")
    made.add_model(ORIGINAL.key, ORIGINAL)
    made.save(SMALLER.key, SMALLER, [STEP], write_model)
    made.add_metrics(ORIGINAL.key, Perplexity(), perplexity(20.0))
    made.add_metrics(SMALLER.key, Perplexity(), perplexity(25.0))
    return made


class Laco:
    """Runs commands on one store, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = speak(app, [*arguments, "--store", str(self.folder)])
        said = self.capsys.readouterr()
        return status, said.out, said.err

    def document(self, *arguments: str) -> Any:
        status, out, _ = self(*arguments, "--json")
        assert status == 0
        return json.loads(out)


@pytest.fixture
def laco(store: RunStore, capsys: pytest.CaptureFixture[str]) -> Laco:
    return Laco(store.folder, capsys)


# What people type


def test_group_of_options_is_typed_field_by_field():
    seen: list[tuple[Any, ...]] = []

    @grouped
    def command(wanted: Wanted, on: str = "local") -> None:
        """Say it."""
        seen.append((wanted, on))

    made = typer.Typer()
    made.command()(command)
    made(["preset", "--set", "a=1", "--set", "b=2", "--on", "ray"], standalone_mode=False)
    assert seen == [(Wanted("preset", changes=["a=1", "b=2"]), "ray")]
    assert command.__doc__ == "Say it."


def test_nested_fields_of_a_method_are_set_by_their_path(store: RunStore):
    changes = ["steps.0.method.sparsity=0.6", "steps.0.compensation.epochs=1"]
    recipe = read_recipe("wanda-50", store, ORIGINAL, changes)
    step = Prune(method=Wanda(sparsity=0.6), compensation=Compensate(epochs=1))
    assert recipe.steps == (step,)


def test_result_can_be_compensated_by_its_key(store: RunStore, tmp_path: Path):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"steps": [{"kind": "compensate"}]}), encoding="utf-8")
    recipe = read_recipe(str(file), store, read_model(SMALLER.key, store))
    assert recipe.steps == (Drop(layers=(3,)), Compensate())


def test_method_that_is_not_there_is_named(store: RunStore):
    with pytest.raises(RecipeError, match=r"steps\.0\.prune\.method.*wand"):
        read_recipe("wanda-50", store, ORIGINAL, ["steps.0.method.kind=wand"])


def test_pruning_is_submitted_and_listed_in_words(laco: Laco, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    sent = laco.document("submit", "sparsegpt-2-4", "--model", "org/name@0123abc")
    assert sent["label"] == "name, SparseGPT 2:4, each layer compensated (laco+)"
    assert sent["request"]["recipe"]["steps"][0]["method"]["sparsity"] == 0.5
    assert "SparseGPT 2:4" in laco("jobs")[1]


# Answers


def test_runs_are_listed_with_their_metrics(laco: Laco):
    found = laco.document("runs")
    assert {run["key"] for run in found} == {ORIGINAL.key, SMALLER.key}
    assert found[0]["metrics"][0]["name"] == "perplexity[text]"
    status, out, _ = laco("runs")
    assert status == 0
    assert SMALLER.key[:11] in out


def test_empty_store_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    empty = Laco(tmp_path, capsys)
    assert empty.document("runs") == []
    assert "laco demo" in empty("runs")[1]


def test_show_tells_recipe_steps_and_metrics(laco: Laco):
    found = laco.document("show", SMALLER.key[:12])
    assert found["key"] == SMALLER.key
    assert Recipe.model_validate(found["recipe"]) == SMALLER
    assert found["steps"] == [STEP]
    assert Path(found["path"]).is_dir()
    assert [metric["value"] for metric in found["metrics"]] == [25.0]


def test_compare_gives_deltas_against_the_baseline(laco: Laco):
    rows = laco.document("compare", ORIGINAL.key, SMALLER.key)
    assert [row["delta"] for row in rows] == [None, 5.0]
    rows = laco.document("compare", ORIGINAL.key, "--baseline", SMALLER.key)
    assert [row["delta"] for row in rows] == [None, -5.0]


def test_compare_writes_a_file(laco: Laco, tmp_path: Path):
    out = tmp_path / "table.md"
    keys = (ORIGINAL.key, SMALLER.key)
    status, said, _ = laco("compare", *keys, "--format", "markdown", "--out", str(out))
    assert status == 0
    assert out.read_text(encoding="utf-8").startswith("| run |")
    assert not said.strip()


def test_diff_names_what_differs(laco: Laco):
    found = laco.document("diff", ORIGINAL.key, SMALLER.key)
    assert found == [{"path": "steps.0", "left": None, "right": "drop 1 layer (3)"}]
    assert "the same" in laco("diff", SMALLER.key, SMALLER.key)[1]


def test_store_is_verified_rebuilt_and_pruned(laco: Laco):
    assert laco.document("store", "verify") == {"problems": []}
    assert laco.document("store", "rebuild") == {"runs": 2}
    assert laco.document("store", "prune")["freed_bytes"] >= 0


def test_verify_tells_of_a_broken_result(laco: Laco, store: RunStore):
    artifact = store.artifact(SMALLER.key)
    assert artifact is not None
    assert artifact.path is not None
    (artifact.path / "config.json").unlink()
    status, out, _ = laco("store", "verify")
    assert status == 1
    assert SMALLER.key in out


def test_devices_are_listed_and_chosen(laco: Laco, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LACO_SLOTS", raising=False)
    (cpu,) = laco.document("devices")
    assert (cpu["name"], cpu["jobs"], cpu["at_work"]) == ("cpu", 1, [])
    assert cpu["memory_total"] > cpu["memory_free"] > 0
    assert laco.document("devices", "cpu", "--jobs", "2")[0]["jobs"] == 2
    assert laco.document("devices", "all")[0]["jobs"] == 1
    assert "takes 1 at once" in laco("devices")[1]


def test_jobs_of_a_new_store_are_none(laco: Laco):
    assert laco.document("jobs") == []


# Status and errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "k1-nothing"), "There is no result k1-nothing"),
        (("compare", ORIGINAL.key, "k1-nothing"), "There is no result k1-nothing"),
        (("compare", ORIGINAL.key, "--format", "yaml"), "There is no format 'yaml'"),
        (("evaluate", "org/name", "zero:piqa"), "zero: not an evaluation; choose perp"),
        (("evaluate", "org/name", "perplexity:text,windw=3"), "windw: there is no such field"),
        (("run", "nothing.json"), "There is no recipe file nothing.json"),
        (("run", "shortgpt"), "shortgpt names no model"),
        (("run", "sleb", "--model", "a/b", "--set", "steps.0.spam=1"), "spam: there is no such"),
        (("submit", "sleb", "--model", "a/b", "--on", "moon"), "moon is no place"),
        (("similarity", "a/b", "--measure", "taste"), "--measure taste: choose one of cosine"),
        (("similarity", "a/b", "--out", "map.png"), "--out map.png: end the name in .json"),
        (("similarity", "a/b", "--windows", "0"), "windows: .*greater than or equal to 1"),
        (("whatif", "a/b", "--merge", "blend"), "merge: "),
        (("logs", "no-such-job"), "no-such-job"),
        (("cancel", "no-such-job"), "no-such-job"),
    ],
)
def test_error_is_one_sentence_with_status_one(
    laco: Laco, arguments: tuple[str, ...], sentence: str
):
    status, out, err = laco(*arguments)
    assert (status, out) == (1, "")
    assert len(err.strip().splitlines()) == 1
    assert re.search(sentence, err), err


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("show",), ("runs", "--frob"), ("app", "--port", "x")]
)
def test_wrong_usage_has_status_two(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert speak(app, [*arguments]) == 2
    assert "Usage" in capsys.readouterr().err


def test_bug_is_a_traceback(laco: Laco, monkeypatch: pytest.MonkeyPatch):
    def broken(_store: RunStore) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RunStore, "runs", broken)
    with pytest.raises(ZeroDivisionError):
        laco("runs")


# What people type


def test_model_is_a_hub_id_with_or_without_a_revision(store: RunStore):
    assert read_model("org/name", store) == Recipe(model=ModelRef(path="org/name"))
    assert read_model("org/name@v2", store).model.revision == "v2"
    assert read_model("org/name", store, "bfloat16").model.dtype == "bfloat16"


def test_code_that_comes_with_a_model_runs_only_when_asked(store: RunStore):
    assert not read_model("org/name", store).model.trust_remote_code
    assert read_model("org/name", store, trust_remote_code=True).model.trust_remote_code


def test_folder_is_a_model_wherever_the_job_runs(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a@b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_model("a@b", store).model.path == str(tmp_path / "a@b")


def test_key_of_a_result_is_its_recipe(store: RunStore):
    assert read_model(SMALLER.key[:14], store) == SMALLER
    with pytest.raises(StoreError, match="laco runs"):
        read_model("k1-0", store)


def test_result_keeps_its_dtype(store: RunStore):
    with pytest.raises(RecipeError, match="float32"):
        read_model(SMALLER.key, store, "bfloat16")


def test_evaluations_are_read_with_their_settings():
    assert read_evaluations("footprint") == (Footprint(),)
    assert read_evaluations("perplexity") == (Perplexity(),)
    assert read_evaluations("perplexity:c4@heldout,window=64,windows=all") == (
        Perplexity(source="c4@heldout", window=64, windows=None),
    )
    assert read_evaluations("kl:ptb", limit=3) == (Divergence(source="ptb", windows=3),)
    assert read_evaluations("footprint", limit=3) == (Footprint(),)


def test_tasks_are_an_evaluation_each_with_the_same_settings(tmp_path: Path):
    found = read_evaluations("zero-shot:hellaswag,piqa,shots=2,limit=all")
    assert found == (
        ZeroShot(task="hellaswag", shots=2, limit=None),
        ZeroShot(task="piqa", shots=2, limit=None),
    )
    assert len(read_evaluations("zero-shot:llm-pruner,boolq", limit=9)) == 7
    assert read_evaluations("zero-shot:gsm8k") == (ZeroShot(task="gsm8k", data="hub"),)
    folder = f"file:{tmp_path}"
    assert read_evaluations(f"zero-shot:piqa,data={folder}") == (
        ZeroShot(task="piqa", data=folder),
    )
    with pytest.raises(RecipeError, match="names no task"):
        read_evaluations("zero-shot:shots=2")


def test_settings_stand_without_a_subject():
    assert read_evaluations("latency,batch=2") == (Latency(batch=2),)


def test_file_with_a_comma_is_read_whole():
    (found,) = read_evaluations("perplexity:file:/a,b=c/text.txt,window=8")
    assert found == Perplexity(source="file:/a,b=c/text.txt", window=8)


def test_file_source_is_whole_wherever_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert read_source("file:a.txt@heldout") == f"file:{tmp_path}/a.txt@heldout"
    assert read_source("c4@heldout") == "c4@heldout"


def test_override_changes_one_field_and_leaves_the_document():
    document = {"steps": [{"kind": "collapse"}]}
    assert override(document, "steps.0.threshold=0.7")["steps"][0]["threshold"] == 0.7
    assert override(document, "steps.0.calibration.windows=3")["steps"][0]["calibration"] == {
        "windows": 3
    }
    assert override(document, "model.path=org/name")["model"] == {"path": "org/name"}
    assert document == {"steps": [{"kind": "collapse"}]}


@pytest.mark.parametrize(
    "change", ["steps.1.span=2", "steps.x.span=2", "steps.0.kind.more=2", "steps", "=3"]
)
def test_override_of_a_place_that_is_not_there_is_refused(change: str):
    with pytest.raises(RecipeError, match="--set"):
        override({"steps": [{"kind": "collapse"}]}, change)


def test_preset_is_taken_by_name_and_changed(store: RunStore):
    model = Recipe(model=ModelRef(path="org/name"))
    recipe = read_recipe("laco-llama2-7b", store, model, ["steps.0.threshold=0.5"])
    (step,) = recipe.steps
    assert isinstance(step, Collapse)
    assert (step.threshold, step.span, step.merge) == (0.5, 4, "telescoped")


def test_recipe_on_a_result_goes_on_from_it(store: RunStore, tmp_path: Path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"steps": [{"kind": "drop", "layers": [0]}]}), encoding="utf-8")
    wanted = SMALLER.then(Drop(layers=(0,)))
    assert read_recipe(str(path), store, read_model(SMALLER.key, store)) == wanted
    document = {"model": {"path": SMALLER.key}, "steps": [{"kind": "drop", "layers": [0]}]}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert read_recipe(str(path), store) == wanted


@pytest.mark.parametrize("text", ["[1, 2]", "{no json", '{"model": {"path": "x"}, "stepz": []}'])
def test_broken_recipe_file_is_refused(store: RunStore, tmp_path: Path, text: str):
    path = tmp_path / "recipe.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"recipe"):
        read_recipe(str(path), store)


# Manners


def test_ctrl_c_stops_the_work_with_status_130(laco: Laco, monkeypatch: pytest.MonkeyPatch):
    from laco import engine

    def interrupted(_request: object, _store: object, context: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        context.step(0.5, "on")

    monkeypatch.setattr(engine, "run", interrupted)
    before = signal.getsignal(signal.SIGINT)
    status, out, err = laco("run", "sleb", "--model", "org/name", "--device", "cpu")
    assert (status, out) == (130, "")
    assert "Stopped." in err
    assert signal.getsignal(signal.SIGINT) is before


def test_cancelled_work_has_status_130(laco: Laco, monkeypatch: pytest.MonkeyPatch):
    from laco import engine

    def stopped(*_: object) -> None:
        raise Cancelled

    monkeypatch.setattr(engine, "run", stopped)
    assert laco("evaluate", "org/name", "footprint", "--device", "cpu")[0] == 130


def test_what_libraries_print_does_not_reach_the_answer(
    laco: Laco, monkeypatch: pytest.MonkeyPatch
):
    from laco import engine

    report = {"key": "k1-x", "path": None, "steps": [], "metrics": [], "analyses": []}

    def chatty(*_: object) -> dict[str, Any]:
        print("Loading checkpoint shards")
        return report

    monkeypatch.setattr(engine, "run", chatty)
    arguments = ("run", "sleb", "--model", "org/name", "--device", "cpu")
    assert laco.document(*arguments) == report


def test_device_that_is_not_there_is_refused(laco: Laco):
    status, _, err = laco("evaluate", "org/name", "footprint", "--device", "abacus")
    assert status == 1
    assert "--device abacus: there is none here; choose cpu" in err


def test_file_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot be written"):
        write_file(tmp_path / "no" / "file.txt", "text")
    write_file(tmp_path / "file.txt", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_module_and_command_are_the_same():
    module = [sys.executable, "-m", "laco", "--help"]
    command = [str(Path(sys.executable).parent / "laco"), "--help"]
    texts = [
        subprocess.run(line, capture_output=True, text=True, check=True).stdout
        for line in ([module, command] if shutil.which(command[0]) else [module, module])
    ]
    assert texts[0] == texts[1]
    assert "Three examples" in texts[0]


# Export

CHECKS = [{"name": "logits", "ok": True, "detail": "0 apart"}]


def test_export_asks_for_the_folder_and_prints_what_was_found(
    laco: Laco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Request] = []
    found = {"path": "/there", "verified": True, "checks": CHECKS, "notes": []}

    def carry_out(request: Request, _runs: RunStore, _device: str | None) -> dict[str, Any]:
        asked.append(request)
        return {"export": found}

    monkeypatch.setattr("laco.cli.work.carry_out", carry_out)
    monkeypatch.chdir(tmp_path)
    assert laco.document("export", SMALLER.key[:11], "out", "--dtype", "bfloat16") == found
    (request,) = asked
    assert request.recipe == SMALLER
    assert request.export == Export(folder=str(tmp_path / "out"), dtype="bfloat16")
    assert "logits  passed  0 apart" in laco("export", SMALLER.key, "out")[1]
    assert "choose auto, float32" in laco("export", SMALLER.key, "out", "--dtype", "int8")[2]


def test_export_that_fails_prints_its_checks_and_has_status_1(
    laco: Laco, monkeypatch: pytest.MonkeyPatch
):
    def carry_out(*_: Any) -> Any:
        raise ExportError("The export failed its check 'logits'.", CHECKS)

    monkeypatch.setattr("laco.cli.work.carry_out", carry_out)
    status, out, said = laco("export", SMALLER.key, "out", "--json")
    assert status == 1
    assert json.loads(out) == {"path": None, "verified": False, "checks": CHECKS}
    assert said == "The export failed its check 'logits'.\n"
    assert laco("export", SMALLER.key, "out")[1] == ""
