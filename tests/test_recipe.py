"""Recipes: JSON and back, keys that stay, unknown fields, shared prefixes, settled defaults."""

import json

import pytest
from pydantic import ValidationError

from laco import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Merge,
    ModelRef,
    Perplexity,
    Prune,
    Recipe,
    Similarity,
    Wanda,
)
from laco.errors import RecipeError
from laco.recipe import SENTENCES, chained_key, identity, parse_recipe

MODEL = ModelRef(path="org/name", revision="0123abc", dtype="float32")
STEPS = (
    Collapse(target_layers=24),
    Collapse(interval=1, threshold=0.45, span=7, merge="telescoped"),
    Merge(spans=((4, 6), (10, 13)), merge="mean"),
    Drop(layers=(1, 3)),
)
PINNED = [
    "k1-4664f191799a7a1380bdbccdd9a96515",
    "k1-f9bdf09fc228e9c08fb9ec584926868a",
    "k1-3c528598a8f331e6f714addec78d4a50",
    "k1-4aa00dbf6b481577aacc3c7dee022f6e",
    "k1-51ae1d5dd18cf610ff35c5b74dcb40d7",
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind)
def test_recipe_survives_json(step):
    recipe = Recipe(model=MODEL, steps=(step,))
    assert parse_recipe(recipe.model_dump_json()) == recipe
    assert parse_recipe(json.loads(recipe.model_dump_json())).key == recipe.key


def test_defaults_need_not_be_written():
    recipe = parse_recipe({"model": {"path": "org/name"}, "steps": [{"kind": "collapse"}]})
    assert recipe == Recipe(model=ModelRef(path="org/name"), steps=(Collapse(),))


def test_these_recipes_keep_these_keys():
    """Results on people's disks are found by these; a change needs a raised `version`."""
    assert Recipe(model=MODEL, steps=STEPS).keys() == PINNED


def test_recipes_that_begin_alike_share_keys():
    short = Recipe(model=MODEL, steps=STEPS[:2])
    long = Recipe(model=MODEL, steps=STEPS)
    assert long.keys()[:3] == short.keys()
    assert short.then(*STEPS[2:]) == long


def test_same_step_after_another_step_has_another_key():
    assert (
        Recipe(model=MODEL, steps=STEPS).keys()[4]
        != (Recipe(model=MODEL, steps=STEPS[3:]).keys()[1])
    )


def test_field_at_its_default_moves_no_key():
    plain, spelt = Drop(layers=(3,)), Collapse.model_validate({"kind": "collapse", "span": 2})
    assert identity(plain) == {"kind": "drop", "layers": [3], "version": 1}
    assert Recipe(model=MODEL, steps=(spelt,)).key == Recipe(model=MODEL, steps=(Collapse(),)).key


def test_raised_version_moves_the_key(monkeypatch: pytest.MonkeyPatch):
    before = Recipe(model=MODEL, steps=STEPS).keys()
    monkeypatch.setattr(Merge, "version", 2)
    after = Recipe(model=MODEL, steps=STEPS).keys()
    assert after[:3] == before[:3]
    assert after[3] != before[3]


def test_dtype_is_part_of_the_key():
    other = ModelRef(path=MODEL.path, revision=MODEL.revision, dtype="bfloat16")
    assert Recipe(model=other).key != Recipe(model=MODEL).key


def test_model_pinned_by_content_is_the_same_in_any_folder():
    here = ModelRef(path="/here/model", revision="content:abc", dtype="float32")
    there = ModelRef(path="/there/model", revision="content:abc", dtype="float32")
    other = ModelRef(path="/here/model", revision="content:def", dtype="float32")
    assert Recipe(model=here).key == Recipe(model=there).key
    assert Recipe(model=here).key != Recipe(model=other).key


def test_evaluations_of_one_result_have_different_keys():
    key = Recipe(model=MODEL).key
    found = {chained_key(key, Perplexity()), chained_key(key, Perplexity(window=256))}
    assert len(found | {chained_key(key, Similarity())}) == 3


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ({"kind": "collapse", "treshold": 0.6}, "treshold: there is no such field"),
        ({"kind": "collapse", "span": 1}, "span: .*greater than or equal to 2"),
        ({"kind": "colapse"}, "collapse"),
        ({"kind": "collapse", "target_layers": 3, "target_share": 0.5}, "not both"),
        ({"kind": "collapse", "order": "influence"}, "needs target_layers or target_share"),
        (
            {"kind": "collapse", "order": "angular", "target_layers": 3, "threshold": 1},
            "looks once",
        ),
        ({"kind": "collapse", "objective": "cosine", "threshold": 1.5}, "a cosine is at most 1"),
        ({"kind": "collapse", "lowest": 5, "highest": 5}, "must lie above lowest"),
        ({"kind": "collapse", "calibration": {"windws": 3}}, "windws: there is no such field"),
        ({"kind": "merge", "spans": [[6, 4]]}, "empty, inverted or a single layer"),
        ({"kind": "merge", "spans": [[4, 5]]}, "empty, inverted or a single layer"),
        ({"kind": "merge", "spans": [[-1, 3]]}, "empty, inverted or a single layer"),
        ({"kind": "merge", "spans": [[2, 5], [4, 7]]}, "cuts through"),
        ({"kind": "merge", "spans": []}, "spans"),
        ({"kind": "drop", "layers": [3, 3]}, "stand there once"),
        ({"kind": "drop", "layers": [-1]}, "must be 0 or more"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name(step: dict, complaint: str):
    with pytest.raises(RecipeError, match=complaint):
        parse_recipe({"model": {"path": "org/name"}, "steps": [step]})


def test_text_that_is_no_json_is_refused():
    with pytest.raises(RecipeError, match="cannot be read"):
        parse_recipe("{steps")


def test_spec_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        STEPS[0].span = 3


def test_interval_chooses_the_papers_search_with_its_settings():
    step = Collapse(interval=2, threshold=0.65, merge="telescoped")
    assert (step.order, step.objective, step.span) == ("top_down", "cosine", 4)
    assert step.calibration == SENTENCES
    assert step.parameters == "projections"


def test_settled_defaults_give_way_to_what_is_written():
    step = Collapse(
        order="top_down",
        span=6,
        objective="kl",
        merge="telescoped",
        parameters="all",
        calibration=Calibration(windows=1),
    )
    assert (step.span, step.objective, step.parameters) == (6, "kl", "all")
    assert step.calibration.windows == 1


def test_later_span_may_contain_or_lie_beside_an_earlier_one():
    spans = ((4, 6), (3, 8), (10, 12))
    assert Merge(spans=spans).spans == spans


def test_a_prune_that_compensates_looks_at_the_compensations_text():
    own = {"windows": 7}
    step = Prune.model_validate({"compensation": {"calibration": own}})
    assert step.calibration == Calibration(windows=7)
    both = {"calibration": own, "compensation": {"calibration": own}}
    assert Prune.model_validate(both) == step
    assert Prune.model_validate(step.model_dump()) == step
    with pytest.raises(ValidationError, match="leave it, or give the same"):
        Prune.model_validate({"calibration": {"windows": 9}, "compensation": {}})


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"sparsity": 0}, "greater than 0"),
        ({"sparsity": 1}, "less than 1"),
        ({"pattern": "4:2"}, "0 < n < m"),
        ({"pattern": "half"}, "such as 2:4"),
        ({"pattern": "2:4", "sparsity": 0.3}, "give one of them"),
    ],
)
def test_impossible_sparsities_are_refused(fields, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Wanda.model_validate(fields)


def test_a_pattern_says_the_sparsity_and_a_target_says_alpha():
    assert Wanda(pattern="1:4").sparsity == 0.75
    assert Compensate.model_validate({"target": "same_input"}).alpha == 0
    assert Compensate.model_validate({"target": "dense_stream"}) == Compensate()
    with pytest.raises(ValidationError, match="give one of them"):
        Compensate.model_validate({"target": "same_input", "alpha": 0.5})


def test_the_papers_mode_brings_the_papers_settings():
    step = Compensate.model_validate({"mode": "paper"})
    assert (step.epochs, step.learning_rate, step.held_out) == (10, 5e-5, 0)
    assert (step.calibration.windows, step.calibration.length) == (2048, 128)
    assert Compensate.model_validate({"mode": "paper", "epochs": 3}).epochs == 3
