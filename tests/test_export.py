"""Exports checked by a fresh process: families and steps that pass, damages that each check sees.

All folders are checked by one process; a damaged folder goes with the order of the whole one.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from laco import engine, export, models, reference
from laco.checkpoint import Header, read_config, read_headers
from laco.context import Context
from laco.errors import Cancelled, ExportError
from laco.evaluations import Export, Footprint, Metric, Request
from laco.export import files, modelcard, readiness, verify
from laco.export.fresh import CHECKS
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Magnitude,
    Merge,
    ModelRef,
    Prune,
    Recipe,
    Structured,
    Wanda,
)
from laco.store import RunStore
from tests import tiny

WORDS = " ".join(f"The {n} small birds sat in the {n % 7} old trees and sang." for n in range(400))
CODE = """
from transformers import LlamaForCausalLM


class TinyForCausalLM(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        {more}
"""
ONE_PLACE = "for layer in self.model.layers: layer.self_attn.layer_idx = 0"
DROP = (Drop(layers=(1, 3)),)


def cases(source: str) -> dict[str, tuple[str, tuple[Any, ...], str]]:
    """By name: family, steps, number format."""
    text = Calibration(source=f"file:{source}", windows=2, length=16)
    repair = Compensate(epochs=1, calibration=text, held_out=1, batch_tokens=32)
    wanda = Prune(method=Wanda(sparsity=0.5), calibration=text, compensation=repair)
    narrow = Structured(importance="magnitude", channels=0.5, multiple=1)
    return {
        "llama dropped": ("llama", DROP, "auto"),
        "llama merged": ("llama", (Merge(spans=((1, 4),), merge="mean"),), "auto"),
        "gpt2 dropped": ("gpt2", DROP, "bfloat16"),
        "phi3 narrower": ("phi3", (Prune(method=narrow, calibration=text),), "auto"),
        "gemma2 merged": ("gemma2", (Merge(spans=((0, 2),), merge="drop"),), "float16"),
        "gemma3 dropped": ("gemma3_text", (*DROP, Drop(layers=(0,))), "auto"),
        "qwen3 repaired": ("qwen3", (Drop(layers=(0,)), wanda), "auto"),
        "smollm3 dropped": ("smollm3", DROP, "bfloat16"),
        "bloom dropped": ("bloom", DROP, "auto"),
        "opt dropped": ("opt", DROP, "auto"),
        "gpt_oss dropped": ("gpt_oss", DROP, "auto"),
        "qwen2_moe pruned": ("qwen2_moe", (Prune(method=Magnitude(), calibration=text),), "auto"),
        "minicpm3 dropped": ("minicpm3", DROP, "auto"),
        "own code": ("own code", DROP, "auto"),
    }


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = read_config(folder)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def rewrite(name: str, old: str, new: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return damage


def swap_in_index(folder: Path) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    places = index["weight_map"]
    names = [next(n for n, place in places.items() if place == f) for f in set(places.values())]
    places[names[0]], places[names[1]] = places[names[1]], places[names[0]]
    file.write_text(json.dumps(index))


def noise(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"] *= 1.1


def shorten(config: dict[str, Any]) -> None:
    config["layer_types"].pop()


def truncate(config: dict[str, Any]) -> None:
    config["layer_types"] = tiny.MIXED[: len(config["layer_types"])]


def stored_twice(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]


DAMAGES: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {
    "a tensor is missing": (
        "llama dropped",
        lambda f: change_tensors(f, lambda t: t.pop("model.layers.2.mlp.up_proj.weight")),
        ("tensor inventory", "loading", "size", "logits"),
    ),
    "a tensor too many": (
        "llama dropped",
        lambda f: change_tensors(
            f, lambda t: t.update({"model.layers.9.mlp.up_proj.weight": torch.ones(2)})
        ),
        ("tensor inventory", "loading", "size"),
    ),
    "another number format": (
        "llama dropped",
        lambda f: change_tensors(f, lambda t: t.update({n: v.half() for n, v in t.items()})),
        ("tensor inventory", "logits"),
    ),
    "another shape": (
        "llama dropped",
        lambda f: change_tensors(f, lambda t: t.update({"model.norm.weight": torch.ones(31)})),
        ("tensor inventory", "loading", "size", "logits"),
    ),
    "a tied head stored twice": (
        "gpt2 dropped",
        lambda f: change_tensors(f, stored_twice),
        ("tensor inventory", "size"),
    ),
    "another index": ("gemma3 dropped", swap_in_index, ("tensor inventory",)),
    "a list too short": (
        "gemma3 dropped",
        lambda f: change_config(f, shorten),
        ("config lists", "config round trip", "loading", "tokenizer"),
    ),
    "a list truncated, not sliced": (
        "gemma3 dropped",
        lambda f: change_config(f, truncate),
        ("config lists", "logits"),
    ),
    "another number of layers": (
        "llama dropped",
        lambda f: change_config(f, lambda c: c.update(num_hidden_layers=5)),
        ("config lists", "loading", "size", "logits"),
    ),
    "a field under an older name": (
        "llama dropped",
        lambda f: change_config(f, lambda c: c.update(torch_dtype=c.pop("dtype"))),
        ("config round trip",),
    ),
    "another tokenizer": (
        "llama dropped",
        rewrite("tokenizer.json", '"Ġthe"', '"Ġtea"'),
        ("tokenizer",),
    ),
    "no chat template": (
        "own code",
        lambda f: (f / "chat_template.jinja").unlink(),
        ("tokenizer",),
    ),
    "another generation config": (
        "llama dropped",
        rewrite("generation_config.json", '"eos_token_id": 1', '"eos_token_id": 2'),
        ("copied files",),
    ),
    "other weights": (
        "llama dropped",
        lambda f: change_tensors(f, noise),
        ("logits",),
    ),
    "layers that share a place in the cache": (
        "own code",
        rewrite("modeling_tiny.py", "pass", ONE_PLACE),
        ("copied files", "cached generation", "static cache"),
    ),
    "code that needs laco": (
        "own code",
        rewrite("modeling_tiny.py", "pass", "import laco"),
        ("copied files", "loading"),
    ),
}


def source_folder(name: str, folder: Path) -> ModelRef:
    if name != "own code":
        build = {**tiny.ARCHITECTURES, **tiny.PROBED}[name]
        return ModelRef(path=str(tiny.save(build(), folder)))
    tiny.save(tiny.ARCHITECTURES["llama"](), folder)
    (folder / "modeling_tiny.py").write_text(CODE.format(more="pass"))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    auto = {"AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}
    change_config(folder, lambda c: c.update(auto_map=auto, architectures=["TinyForCausalLM"]))
    return ModelRef(path=str(folder), trust_remote_code=True)


def finished(recipe: Recipe, store: RunStore) -> Recipe:
    engine.run(Request(recipe=recipe), store, Context())
    return engine.settle(recipe, store)


Answers = dict[str, dict[str, Any]]  # by check: {"ok", "detail"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Answers]:
    """What the fresh process found, by case and by damage."""
    place = tmp_path_factory.mktemp("exports")
    source = place / "text.txt"
    source.write_text(WORDS)
    store = RunStore(place / "store")
    orders: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "GENERATE", 6)  # for time's sake
        for name, (family, steps, dtype) in cases(str(source)).items():
            ref = source_folder(family, place / "sources" / name)
            recipe = finished(Recipe(model=ref, steps=steps), store)
            patch.setattr(files, "SHARD", 40_000 if name == "gemma3 dropped" else 1 << 30)
            folder, aside = place / "out" / name, place / "orders" / name
            folder.mkdir(parents=True)
            aside.mkdir(parents=True)
            made = export.find(recipe, store, dtype)
            orders[name], _ = export.prepare(made, folder, aside, Context())
    for name, (case, damage, _) in DAMAGES.items():
        folder, aside = place / "out" / name, place / "orders" / name
        shutil.copytree(place / "out" / case, folder)
        damage(folder)
        aside.mkdir()
        order = json.loads(orders[case].read_text())
        order |= {"folder": str(folder), "answers": str(aside / "answers.jsonl")}
        orders[name] = aside / "order.json"
        orders[name].write_text(json.dumps(order))
    command = [sys.executable, "-I", str(verify.SCRIPT), *map(str, orders.values())]
    subprocess.run(command, check=True, cwd=place)
    store.close()
    return {
        name: {found["name"]: found for found in verify._answers(order.parent / "answers.jsonl")}
        for name, order in orders.items()
    }


@pytest.mark.parametrize("name", cases(""))
def test_every_check_passes(name: str, answers: Mapping[str, Answers]) -> None:
    found = answers[name]
    assert list(found) == list(CHECKS)
    assert [(check["name"], check["detail"]) for check in found.values() if not check["ok"]] == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen_by_the_checks_it_concerns(
    damage: str, answers: Mapping[str, Answers]
) -> None:
    wrong = {
        name
        for name, check in answers[damage].items()
        if not check["ok"] and "was not loaded" not in check["detail"]
    }
    assert wrong == set(DAMAGES[damage][2])


def test_every_check_has_failed_once() -> None:
    assert {check for _, _, seen in DAMAGES.values() for check in seen} == set(CHECKS)


def test_details_say_how_it_was_measured(answers: Mapping[str, Answers]) -> None:
    assert "allowed" in answers["gpt2 dropped"]["logits"]["detail"]
    assert "in bfloat16" in answers["gpt2 dropped"]["logits"]["detail"]
    assert "in float32" in answers["gemma2 merged"]["logits"]["detail"]  # float16, on a CPU
    assert "files: 1" not in answers["gemma3 dropped"]["tensor inventory"]["detail"]
    assert "in F16:" in answers["gemma2 merged"]["size"]["detail"]
    assert answers["opt dropped"]["static cache"]["detail"]
    assert answers["a tensor is missing"]["tensor inventory"]["detail"] == (
        "model.layers.2.mlp.up_proj.weight is not in the files"
    )


def test_the_checks_import_nothing_of_laco() -> None:
    tree = ast.parse(verify.SCRIPT.read_text())
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not [name for name in names if str(name).startswith("laco")]


# The whole way


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = RunStore(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def recipe(tmp_path: Path, store: RunStore) -> Recipe:
    folder = tiny.save(tiny.ARCHITECTURES["qwen3"](), tmp_path / "tiny")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Tiny\n")
    (folder / "LICENSE").write_text("Apache")
    return finished(Recipe(model=ModelRef(path=str(folder)), steps=DROP), store)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that need no process: all pass."""

    def verified(_order: Path, _n_bytes: int, _context: Context) -> list[verify.Check]:
        return [{"name": name, "ok": True, "detail": "fine"} for name in CHECKS]

    monkeypatch.setattr(verify, "verify", verified)


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_export_is_whole_and_describes_itself(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    store = RunStore(tmp_path / "store")
    request = Request(
        recipe=recipe, evaluations=(Footprint(),), export=Export(folder=str(out), dtype="bfloat16")
    )
    result = engine.run(request, store, Context())["export"]
    assert result["path"] == str(out)
    assert result["verified"]
    assert [check["name"] for check in result["checks"]] == list(CHECKS)
    assert left_in(out.parent) == {"out"}
    original = Path(recipe.model.path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"):
        assert (out / name).read_bytes() == (original / name).read_bytes()
    assert {header.dtype for header in read_headers(out).values()} == {"BF16"}
    assert oct((out / "model.safetensors").stat().st_mode) == oct(
        (out / "config.json").stat().st_mode
    )
    document = json.loads((out / "laco.json").read_text())
    assert document["key"] == recipe.key
    assert document["layers"] == [0, 2, 4, 5]
    assert document["checks"] == result["checks"]
    assert Recipe.model_validate(document["recipe"]) == recipe
    card = (out / "README.md").read_text()
    assert card.startswith("---\n")
    assert "license: apache-2.0" in card
    assert recipe.key in card
    assert "| parameters |" in card
    assert "| cached generation | passed |" in card
    lm = models.load_folder(out, ModelRef(path=str(out)), "cpu")
    assert len(lm.layers) == 4
    store.close()


def exported(recipe: Recipe, store: RunStore, folder: Path, **options: Any) -> dict[str, Any]:
    return export.export(recipe, store, Export(folder=str(folder)), Context(**options))


def test_a_failed_check_leaves_nothing_and_is_named(
    recipe: Recipe, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [{"name": name, "ok": name != "logits", "detail": "0.5 apart"} for name in CHECKS]
    monkeypatch.setattr(verify, "verify", lambda *_: checks)
    before, published = left_in(tmp_path), []
    with pytest.raises(ExportError, match=r"its check 'logits': 0\.5 apart; nothing was put") as e:
        exported(recipe, store, tmp_path / "out", publish=published.append)
    assert e.value.checks == checks
    assert published[-1]["export"] == {
        "path": None,
        "verified": False,
        "checks": checks,
        "notes": [],
    }
    assert left_in(tmp_path) == before


@pytest.mark.usefixtures("passing")
def test_an_empty_folder_is_taken_and_a_full_one_refused(
    recipe: Recipe, store: RunStore, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    assert exported(recipe, store, tmp_path / "out")["verified"]
    before = (tmp_path / "out" / "laco.json").read_bytes()
    for taken, why in ((tmp_path / "out", "not empty"), (tmp_path / "out/laco.json", "a file")):
        with pytest.raises(ExportError, match=f"is {why}, and nothing is overwritten"):
            exported(recipe, store, taken)
    assert (tmp_path / "out" / "laco.json").read_bytes() == before


def test_a_taken_folder_is_refused_before_any_step(tmp_path: Path, store: RunStore) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    recipe = Recipe(model=ModelRef(path="no such/model"), steps=DROP)
    with pytest.raises(ExportError, match="not empty"):
        engine.run(
            Request(recipe=recipe, export=Export(folder=str(tmp_path / "out"))), store, Context()
        )


@pytest.mark.usefixtures("passing")
def test_what_a_killed_export_left_goes_with_the_next(
    recipe: Recipe, store: RunStore, tmp_path: Path
) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    left, other, own = (
        tmp_path / f"out.partial-{int(dead.stdout)}-0",
        tmp_path / f"other.partial-{int(dead.stdout)}-0",
        tmp_path / f"out.partial-{os.getpid()}-99999",  # of a process that lives
    )
    for folder in (left, other, own):
        folder.mkdir()
        (folder / "model.safetensors").touch()
    exported(recipe, store, tmp_path / "out")
    assert not left.exists()
    assert other.exists()
    assert own.exists()


@pytest.mark.usefixtures("passing")
def test_room_is_asked_for_before_and_told_in_numbers(
    recipe: Recipe, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left_in(tmp_path)
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
        with pytest.raises(ExportError, match=r"needs 67\.\d MB and .* has 1\.0 MB free"):
            exported(recipe, store, tmp_path / "out")
    monkeypatch.setattr(export, "free_memory", lambda _: 2_000_000)
    with pytest.raises(ExportError, match=r"takes 537\.\d MB of memory on cpu and 2\.0 MB are"):
        exported(recipe, store, tmp_path / "out")
    assert left_in(tmp_path) == before


@pytest.mark.usefixtures("passing")
def test_a_disk_that_fills_up_leaves_nothing(
    recipe: Recipe, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    before = left_in(tmp_path)
    with pytest.raises(ExportError, match=r"No space left: .* free some space"):
        exported(recipe, store, tmp_path / "out")
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("code", "patience", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", 60, "was killed, most likely because memory ran"),
        ("raise SystemExit('the disk is of cheese')", 60, "status 1 .the disk is of cheese."),
        ("import time; time.sleep(60)", 0, "was not done after 0 min"),
    ],
)
def test_the_death_of_the_checking_process_is_told(
    code: str, patience: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, order = tmp_path / "script.py", tmp_path / "order.json"
    script.write_text(code)
    order.write_text(json.dumps({"answers": str(tmp_path / "answers.jsonl")}))
    found = {"name": "tensor inventory", "ok": True, "detail": ""}
    (tmp_path / "answers.jsonl").write_text(json.dumps(found) + '\n{"half')
    monkeypatch.setattr(verify, "SCRIPT", script)
    monkeypatch.setattr(verify, "PATIENCE", patience)
    with pytest.raises(ExportError, match=f"{words}.*at the check 'copied files'") as error:
        verify.verify(order, 1000, Context())
    assert [check["ok"] for check in error.value.checks] == [True, False]


def test_cancelling_ends_the_checking_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, order = tmp_path / "script.py", tmp_path / "order.json"
    script.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    order.write_text(json.dumps({"answers": str(tmp_path / "answers.jsonl")}))
    monkeypatch.setattr(verify, "SCRIPT", script)
    started = time.monotonic()
    wanted = (tmp_path / "pid").exists
    with pytest.raises(Cancelled):
        verify.verify(order, 0, Context(cancelled=wanted))
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_tied_head_that_the_source_holds_twice_is_written_once(tmp_path: Path) -> None:
    folder = tiny.save(tiny.ARCHITECTURES["gpt2"](), tmp_path / "tiny")
    change_tensors(folder, stored_twice)
    (tmp_path / "out").mkdir()
    ref = ModelRef(path=str(folder))
    written = files.write(folder, folder, ref, "float32", tmp_path / "out", Context())
    assert "lm_head.weight" in read_headers(folder)
    assert "lm_head.weight" not in written.tensors
    assert written.tensors.keys() == read_headers(tmp_path / "out").keys()


# What others can read


def laid_out(text: str) -> list[int]:
    """The layers that mergekit's passthrough lays one upon another."""
    plan = yaml.safe_load(text)
    assert plan["merge_method"] == "passthrough"
    (ranges,) = zip(*[source["sources"] for source in plan["slices"]], strict=True)
    return [layer for one in ranges for layer in range(*one["layer_range"])]


@pytest.mark.parametrize("origins", [[0, 1, 2], [1], [0, 2, 4, 5], [3, 4, 7, 9], [2, 3, 4, 11]])
def test_slices_for_mergekit_hold_the_layers_kept(origins: list[int]) -> None:
    recipe = Recipe(model=ModelRef(path="org/name"), steps=(Drop(layers=(0,)),))
    text = readiness.mergekit_yaml(recipe, "org/name@abc", origins, "bfloat16", [])
    assert text is not None
    assert laid_out(text) == origins


def test_only_drops_can_be_told_to_mergekit() -> None:
    def told(*steps: Any) -> str | None:
        recipe = Recipe(model=ModelRef(path="org/name"), steps=steps)
        return readiness.mergekit_yaml(recipe, "org/name", [0, 1], "float32", ["layer_types"])

    assert told(Drop(layers=(1,)), Collapse(merge="drop", target_layers=2))
    assert "layer_types" in (told(Drop(layers=(1,))) or "")
    assert told(Drop(layers=(1,)), Merge(spans=((0, 2),), merge="mean")) is None
    assert told(Drop(layers=(1,)), Prune()) is None
    assert told() is None


def noted(config: dict[str, Any], files: list[str], **shapes: tuple[int, ...]) -> dict[str, Any]:
    headers = {name.replace("_", "."): Header("F32", shape) for name, shape in shapes.items()}
    found = readiness.notes(config, headers, files, None)
    assert all(note["as_of"] for note in found)
    return {note["name"]: note for note in found}


LLAMA = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2}


def test_notes_say_what_vllm_and_llama_cpp_could_read() -> None:
    even = {"model_layers_0_w": (4, 4), "model_layers_1_w": (4, 4)}
    found = noted(LLAMA, ["tokenizer.json"], **even)
    assert found["vLLM"]["ready"]
    assert "among 2, 4, 8 GPUs" in found["vLLM"]["detail"]  # a key may be on several
    assert found["GGUF"]["ready"]
    assert not found["mergekit"]["ready"]
    odd = noted({**LLAMA, "num_attention_heads": 9, "num_key_value_heads": 3}, [], **even)
    assert "no 2, 4 or 8 GPUs" in odd["vLLM"]["detail"]
    assert not odd["GGUF"]["ready"]  # no tokenizer
    uneven = noted(LLAMA, ["tokenizer.json"], **{**even, "model_layers_1_w": (4, 3)})
    assert not uneven["vLLM"]["ready"]
    assert "model.layers.0.w is 4 x 4, model.layers.1.w is 4 x 3" in uneven["GGUF"]["detail"]
    sparse = noted({**LLAMA, "sparsity_config": {}}, ["tokenizer.json"], **even)
    assert "sparsity_config" in sparse["vLLM"]["detail"]
    assert not noted({"model_type": "cheese"}, ["tokenizer.json"])["GGUF"]["ready"]
    for family in ("gemma3_text", "gpt_neox", "mistral", "qwen2_moe", "smollm3"):
        assert noted({"model_type": family}, ["tokenizer.json"])["GGUF"]["ready"]


def carded(source: Path, metrics: tuple[Metric, ...] = (), **options: Any) -> str:
    recipe = Recipe(model=ModelRef(path="org/name", revision="a" * 40), steps=DROP)
    given: dict[str, Any] = {"before": (), "hub": True, **options}
    return modelcard.model_card(
        recipe,
        "k1-0",
        metrics,
        given["before"],
        [],
        [],
        source,
        modelcard.read_licence(source),
        given["hub"],
    )


def test_card_sets_numbers_beside_those_of_the_original(tmp_path: Path) -> None:
    def perplexity(value: float, window: int) -> Metric:
        return Metric("perplexity[text]", value, "", "lower", details={"window": window})

    card = carded(tmp_path, (perplexity(30, 512),), before=(perplexity(20, 512),))
    assert "| perplexity[text] | 30 | 20 |" in card
    card = carded(tmp_path, (perplexity(30, 512),), before=(perplexity(20, 128),))
    assert "| perplexity[text] | 30 | – |" in card
    assert "Nothing was measured" in carded(tmp_path)


def test_card_takes_the_licence_from_the_source(tmp_path: Path) -> None:
    assert "name no licence" in carded(tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: llama3\n---\n")
    (tmp_path / "USE_POLICY.md").write_text("no cheese")
    card = carded(tmp_path)
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "other"
    assert front["license_name"] == "llama3"
    assert front["base_model"] == "org/name"
    assert "USE_POLICY.md of the source lie in this folder" in card
    assert "base_model" not in carded(tmp_path, hub=False)


def test_a_gguf_file_says_its_licence_itself(tmp_path: Path) -> None:
    ref = ModelRef(path=reference.BUNDLED, revision=reference.bundle_version(), dtype="float32")
    assert export._licence(ref, tmp_path) == {"license": "apache-2.0"}
