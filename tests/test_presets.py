"""The presets carry the papers' settings, and a broken file is named."""

import json
from pathlib import Path

import pytest

from laco import Collapse, Compensate, Finetune, ModelRef, Prune, SparseGPT, Structured, Wanda
from laco.collapse import first_window
from laco.errors import RecipeError
from laco.presets import FOLDER, presets

NAMES = {
    "acl-flap-20",
    "acl-sparsegpt-2-4",
    "acl-sparsegpt-4-8",
    "acl-taylor-20",
    "acl-wanda-20",
    "acl-wanda-50",
    "acl-wanda-70",
    "angular",
    "laco-baichuan2-7b",
    "laco-default",
    "laco-llama2-13b",
    "laco-llama2-7b",
    "laco-plus",
    "lora",
    "shortgpt",
    "sleb",
    "sparsegpt-2-4",
    "wanda-50",
}


def test_laco_plus_prunes_then_compensates_then_tunes_under_the_mask():
    prune, compensate, tune = presets()["laco-plus"].steps
    assert isinstance(prune, Prune)
    assert isinstance(compensate, Compensate)
    assert isinstance(tune, Finetune)
    assert (tune.loss, tune.keep_zeros) == ("ce", True)
    assert prune.calibration.windows == compensate.calibration.windows


def only_step(name: str) -> Collapse:
    (step,) = presets()[name].steps
    assert isinstance(step, Collapse)
    return step


def test_all_presets_are_there_with_a_title_and_a_note():
    found = presets()
    assert set(found) == NAMES
    assert all(preset.title and len(preset.note) > 60 for preset in found.values())


@pytest.mark.parametrize(
    ("name", "span", "interval", "threshold"),
    [
        ("laco-llama2-7b", 4, 2, 0.65),
        ("laco-llama2-13b", 6, 2, 0.75),
        ("laco-baichuan2-7b", 4, 2, 0.70),
    ],
)
def test_laco_presets_carry_the_papers_settings(
    name: str, span: int, interval: int, threshold: float
):
    step = only_step(name)
    assert (step.span, step.interval, step.threshold) == (span, interval, threshold)
    assert (step.order, step.objective, step.merge) == ("top_down", "cosine", "telescoped")
    assert step.parameters == "projections"
    assert (step.calibration.windows, step.calibration.unit) == (10, "sentence")


@pytest.mark.parametrize("name", ["laco-llama2-7b", "laco-llama2-13b", "laco-baichuan2-7b"])
def test_the_papers_range_is_counted_from_zero(name: str):
    """Its L=1 and H=n are 0 and, left unset, n − 1."""
    step = only_step(name)
    assert (step.lowest, step.highest) == (0, None)


@pytest.mark.parametrize(
    ("name", "layers", "window"),
    [("laco-llama2-7b", 32, (27, 31)), ("laco-llama2-13b", 40, (33, 39))],
)
def test_first_window_lies_below_the_last_layer(name: str, layers: int, window: tuple[int, int]):
    step = only_step(name)
    assert first_window(layers, step.span, step.highest) == window


@pytest.mark.parametrize(
    ("name", "order", "objective"),
    [
        ("shortgpt", "influence", "kl"),
        ("angular", "angular", "kl"),
        ("sleb", "best_first", "perplexity"),
        ("laco-default", "best_first", "kl"),
    ],
)
def test_other_presets_drop_a_quarter_of_the_layers(name: str, order: str, objective: str):
    step = only_step(name)
    assert (step.order, step.objective, step.merge) == (order, objective, "drop")
    assert step.target_share == 0.75


PATTERNS = {
    "acl-wanda-20": Wanda(sparsity=0.2),
    "acl-wanda-50": Wanda(sparsity=0.5),
    "acl-wanda-70": Wanda(sparsity=0.7),
    "acl-sparsegpt-2-4": SparseGPT(pattern="2:4"),
    "acl-sparsegpt-4-8": SparseGPT(pattern="4:8"),
    "wanda-50": Wanda(),
    "sparsegpt-2-4": SparseGPT(pattern="2:4"),
}


@pytest.mark.parametrize(("name", "method"), PATTERNS.items(), ids=PATTERNS)
def test_sparse_presets_compensate_each_layer_in_the_same_walk(name: str, method: object):
    """With the published settings, or with our own."""
    mode = "paper" if name.startswith("acl-") else "laco+"
    (step,) = presets()[name].steps
    assert step == Prune.model_validate({"method": method, "compensation": {"mode": mode}})


@pytest.mark.parametrize("importance", ["flap", "taylor"])
def test_width_presets_narrow_all_layers_and_compensate_afterwards(importance: str):
    first, second = presets()[f"acl-{importance}-20"].steps
    assert isinstance(first, Prune)
    assert first.method == Structured.model_validate({"importance": importance, "channels": 0.2})
    assert second == Compensate(mode="paper")


def test_published_compensation_has_the_papers_settings():
    (step,) = presets()["acl-wanda-50"].steps
    assert isinstance(step, Prune)
    paper = step.compensation
    assert paper is not None
    assert (paper.epochs, paper.learning_rate, paper.batch_tokens) == (10, 5e-5, 128)
    assert (paper.calibration.windows, paper.calibration.length) == (2048, 128)


def test_lora_has_llm_pruners_settings():
    (step,) = presets()["lora"].steps
    assert isinstance(step, Finetune)
    assert (step.rank, step.scale, step.dropout) == (8, 16, 0.05)
    assert (step.learning_rate, step.epochs, step.batch_tokens) == (1e-4, 2, 64 * 256)


def test_preset_makes_a_recipe_for_any_model():
    recipe = presets()["shortgpt"].recipe(ModelRef(path="org/name"))
    assert recipe.model.path == "org/name"
    assert recipe.steps == presets()["shortgpt"].steps


def test_presets_have_different_keys():
    model = ModelRef(path="org/name")
    assert len({preset.recipe(model).key for preset in presets().values()}) == len(NAMES)


def test_broken_preset_is_named(tmp_path: Path):
    document = json.loads((FOLDER / "sleb.json").read_text(encoding="utf-8"))
    document["steps"][0]["targetshare"] = 0.5
    (tmp_path / "mine.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"mine\.json.*targetshare: there is no such field"):
        presets(tmp_path)


def test_preset_under_another_name_than_its_file_is_refused(tmp_path: Path):
    text = (FOLDER / "sleb.json").read_text(encoding="utf-8")
    (tmp_path / "mine.json").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"mine\.json calls itself sleb"):
        presets(tmp_path)
