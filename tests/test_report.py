"""Rows, deltas, badges, the Pareto front, differences, and every format."""

import csv
import io
import json
from dataclasses import dataclass, replace

import pytest

from laco import (
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Magnitude,
    Merge,
    Metric,
    ModelRef,
    Prune,
    Recipe,
    SparseGPT,
    Structured,
    Wanda,
)
from laco.errors import RecipeError
from laco.report import FORMATS, describe, diff, format_value, pareto, render, table

MODEL = ModelRef(path="bundled:smollm2-135m")


@dataclass(frozen=True)
class FakeRun:
    key: str
    recipe: Recipe
    metrics: tuple[Metric, ...]


def perplexity(value: float, stderr: float | None = None, **details: object) -> Metric:
    settings = {"source": "bundled:wikipedia@heldout", "window": 256, "windows": 16, **details}
    name = "perplexity[bundled:wikipedia@heldout]"
    return Metric(name, value, unit="", better="lower", stderr=stderr, details=settings)


def parameters(value: float) -> Metric:
    return Metric("parameters", value, unit="", better="lower")


ORIGINAL = FakeRun("k1-a", Recipe(model=MODEL), (perplexity(20.0), parameters(100e6)))
SMALLER = FakeRun(
    "k1-b",
    Recipe(model=MODEL, steps=(Drop(layers=(3,)),)),
    (perplexity(25.0), parameters(90e6)),
)


def test_delta_and_ratio_are_against_the_baseline():
    row = next(row for row in table([ORIGINAL, SMALLER]) if row.key == "k1-b")
    assert (row.baseline, row.delta, row.ratio) == (20.0, 5.0, 1.25)
    assert row.verdict == "worse"


def test_fewer_parameters_are_better():
    row = table([ORIGINAL, SMALLER])[-1]
    assert row.metric == "parameters"
    assert row.verdict == "better"


def test_more_is_better_where_the_metric_says_so():
    accuracy = Metric("accuracy", 0.5, unit="share", better="higher")
    first = replace(ORIGINAL, metrics=(accuracy,))
    second = replace(SMALLER, metrics=(replace(accuracy, value=0.6),))
    assert table([first, second])[1].verdict == "better"


def test_another_run_can_be_the_baseline():
    rows = table([ORIGINAL, SMALLER], baseline=SMALLER)
    assert rows[0].delta == -5.0
    assert rows[0].verdict == "better"
    assert rows[2].verdict == "baseline"


def test_difference_within_the_error_is_the_same():
    first = replace(ORIGINAL, metrics=(perplexity(20.0, stderr=1.5),))
    near = replace(SMALLER, metrics=(perplexity(23.0, stderr=1.5),))
    far = replace(SMALLER, metrics=(perplexity(25.0, stderr=1.5),))
    assert table([first, near])[1].verdict == "same"
    assert table([first, far])[1].verdict == "worse"


def test_unlike_settings_are_badged_and_not_judged():
    other = replace(SMALLER, metrics=(perplexity(25.0, window=512),))
    row = table([ORIGINAL, other])[-1]
    assert row.badge == "window 512, baseline 256"
    assert row.verdict == ""
    assert "†" in render([row])
    assert "window 512" in render([row])


def test_measurement_with_the_baselines_settings_is_the_one_compared():
    first = replace(ORIGINAL, metrics=(perplexity(30.0, window=512), perplexity(20.0)))
    row = table([first, SMALLER])[2]
    assert row.baseline == 20.0
    assert row.badge == ""


def test_metric_that_the_baseline_lacks_has_no_delta():
    first = replace(ORIGINAL, metrics=())
    row = table([first, SMALLER])[0]
    assert row.delta is None
    assert row.verdict == ""


def test_no_runs_give_no_rows():
    assert table([]) == []


def test_pareto_leaves_out_what_another_run_beats():
    beaten = replace(SMALLER, key="k1-c", metrics=(perplexity(26.0), parameters(95e6)))
    name = perplexity(0.0).name
    assert pareto([ORIGINAL, SMALLER, beaten], name, "parameters") == ["k1-a", "k1-b"]


def test_pareto_leaves_out_runs_without_the_metric():
    bare = replace(SMALLER, key="k1-c", metrics=())
    assert pareto([ORIGINAL, bare], perplexity(0.0).name, "parameters") == ["k1-a"]


def test_diff_names_the_fields_that_differ():
    left = Recipe(model=MODEL, steps=(Collapse(target_layers=24),))
    right = Recipe(model=MODEL, steps=(Collapse(target_layers=21, merge="mean"),))
    found = {
        difference.path: (difference.left, difference.right) for difference in diff(left, right)
    }
    assert found == {"steps.0.target_layers": (24, 21), "steps.0.merge": ("drop", "mean")}


def test_diff_looks_into_nested_specs_and_the_model():
    left = Recipe(model=MODEL, steps=(Collapse(),))
    changed = {"calibration": {"windows": 9}}
    step = Collapse.model_validate(changed)
    right = Recipe(model=ModelRef(path=MODEL.path, dtype="float32"), steps=(step,))
    paths = [difference.path for difference in diff(left, right)]
    assert paths == ["model.dtype", "steps.0.calibration.windows"]


def test_diff_looks_into_one_method_and_tells_two_in_words():
    mild, harsh = Prune(method=Wanda(sparsity=0.3)), Prune(method=Wanda(sparsity=0.7))
    found = diff(Recipe(model=MODEL, steps=(mild,)), Recipe(model=MODEL, steps=(harsh,)))
    assert [(d.path, d.left, d.right) for d in found] == [("steps.0.method.sparsity", 0.3, 0.7)]
    other = Prune(method=SparseGPT(pattern="2:4"))
    found = diff(Recipe(model=MODEL, steps=(mild,)), Recipe(model=MODEL, steps=(other,)))
    assert [(d.path, d.left, d.right) for d in found] == [
        ("steps.0.method", "Wanda 30 %", "SparseGPT 2:4")
    ]


def test_diff_tells_a_compensation_that_only_one_has():
    left = Recipe(model=MODEL, steps=(Prune(calibration=Compensate().calibration),))
    right = Recipe(model=MODEL, steps=(Prune(compensation=Compensate()),))
    (found,) = diff(left, right)
    assert (found.path, found.left) == ("steps.0.compensation", None)
    assert found.right == "compensated (laco+)"


def test_diff_tells_a_step_that_only_one_recipe_has():
    left, right = Recipe(model=MODEL), Recipe(model=MODEL, steps=(Drop(layers=(3,)),))
    (difference,) = diff(left, right)
    assert (difference.path, difference.left) == ("steps.0", None)
    assert difference.right == "drop 1 layer (3)"


def test_equal_recipes_have_no_difference():
    assert diff(ORIGINAL.recipe, ORIGINAL.recipe) == []


def test_description_tells_model_and_steps():
    steps = (Merge(spans=((4, 6),)), Drop(layers=(1, 2)))
    assert describe(Recipe(model=MODEL, steps=steps)) == (
        "smollm2-135m, merge [4, 6) (drop), drop 2 layers (1, 2)"
    )


def test_description_tells_a_chain_of_targets_together():
    steps = (Collapse(target_layers=27), Collapse(target_layers=24))
    assert describe(Recipe(model=MODEL, steps=steps)).endswith("to 27, then 24 layers")


def test_descriptions_tell_the_searches_apart():
    step = Collapse(order="top_down", threshold=0.65)
    assert "Algorithm 1 (C=4, I=2, drop) while cosine > 0.65" in describe(
        Recipe(model=MODEL, steps=(step,))
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Prune(), "Wanda 50 %"),
        (Prune(method=SparseGPT(pattern="2:4")), "SparseGPT 2:4"),
        (
            Prune(method=Magnitude(sparsity=0.35), allocation="sensitivity"),
            "magnitude 35 % by sensitivity",
        ),
        (Prune(method=Structured()), "FLAP 20 % of channels"),
        (
            Prune(method=Structured(importance="taylor", channels=0.1, groups=0.25)),
            "Taylor 10 % of channels and 25 % of head groups",
        ),
        (
            Prune(compensation=Compensate(mode="paper")),
            "Wanda 50 %, each layer compensated (paper)",
        ),
        (Compensate(), "compensated (laco+)"),
        (Compensate(alpha=0.5), "compensated (laco+, α 0.5)"),
        (Finetune(), "LoRA r 8"),
        (Finetune(rank=16, loss="kl"), "LoRA r 16 (KL)"),
    ],
)
def test_sparsity_and_recovery_are_told_in_a_few_words(step, words: str):
    assert describe(Recipe(model=MODEL, steps=(step,))) == f"smollm2-135m, {words}"


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_shows_both_runs_and_the_value(form: str):
    text = render(table([ORIGINAL, SMALLER]), form)
    assert "drop 1 layer" in text
    assert "25" in text


def test_csv_reads_back():
    text = render(table([ORIGINAL, SMALLER]), "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4
    assert float(rows[2]["delta"]) == 5.0


def test_json_reads_back():
    rows = json.loads(render(table([ORIGINAL, SMALLER]), "json"))
    assert rows[2]["verdict"] == "worse"


def test_latex_escapes_what_latex_reads():
    text = render(table([ORIGINAL, SMALLER]), "latex")
    assert r"(+25.0 \%)" in text
    assert "_" not in text.replace(r"\_", "")


def test_html_needs_nothing_from_outside_and_escapes_text():
    odd = replace(ORIGINAL, recipe=Recipe(model=ModelRef(path="<b>&co")))
    text = render(table([odd]), "html")
    assert "&lt;b&gt;&amp;co" in text
    assert "http" not in text


def test_markdown_has_a_line_for_each_run():
    lines = render(table([ORIGINAL, SMALLER]), "markdown").splitlines()
    assert len(lines) == 4
    assert all(line.startswith("| ") for line in lines)


def test_unknown_format_is_refused_with_the_choices():
    with pytest.raises(RecipeError, match="markdown"):
        render([], "yaml")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (134515008, "", "134.5 M"),
        (269e6, "bytes", "269.0 MB"),
        (2.5e9, "bytes", "2.50 GB"),
        (0.25, "share", "25.0 %"),
        (30, "", "30"),
        (18.23456, "", "18.23"),
        (18234.56, "", "18,235"),
        (1.5, "nats", "1.5 nats"),
    ],
)
def test_numbers_are_written_for_people(value: float, unit: str, text: str):
    assert format_value(value, unit) == text
