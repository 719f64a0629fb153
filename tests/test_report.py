"""Rows, deltas, badges, the Pareto front, differences, and every format."""

import csv
import io
import json
from dataclasses import dataclass, replace
from typing import Any

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
from laco.report import (
    FORMATS,
    describe,
    diff,
    flipped,
    format_cell,
    format_value,
    pareto,
    render,
    table,
)

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


def test_a_change_that_is_told_as_none_is_not_judged():
    first = replace(ORIGINAL, metrics=(Metric("bytes", 538_100_000, "B", "lower"),))
    for size, verdict in ((538_101_000, "same"), (538_900_000, "worse"), (537_000_000, "better")):
        other = replace(SMALLER, metrics=(Metric("bytes", size, "B", "lower"),))
        assert table([first, other])[1].verdict == verdict


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


def test_latex_opens_with_booktabs():
    lines = render(table([ORIGINAL, SMALLER]), "latex").splitlines()
    assert lines[:3] == [
        r"% in the preamble: \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
    ]
    assert lines[4] == r"\midrule"
    assert lines[7:9] == [r"\bottomrule", r"\end{tabular}"]
    assert not [line for line in lines if "hline" in line]


@pytest.mark.parametrize(
    ("path", "set_as"),
    [
        ("a_b%c&d#e$f{g}", r"a\_b\%c\&d\#e\$f\{g\}"),
        ("x\\y~z^w", r"x\textbackslash{}y\textasciitilde{}z\textasciicircum{}w"),
        ("[3] <b>|", r"{[}3{]} $<$b$>$\textbar{}"),
        ("模型 é", "U+6A21U+578B é"),
        ("a--b\tc\nd", "a-{}-b c d"),
    ],
)
def test_whatever_a_model_is_called_latex_can_set_it(path: str, set_as: str):
    odd = replace(ORIGINAL, recipe=Recipe(model=ModelRef(path=path)))
    assert set_as in render(table([odd]), "latex").splitlines()[5]


def test_markdown_keeps_a_models_name_out_of_its_own_signs():
    odd = replace(ORIGINAL, recipe=Recipe(model=ModelRef(path="a|b <i>*c* [d](javascript:e)\n#f")))
    line = render(table([odd]), "markdown").splitlines()[2]
    assert r"a\|b \<i>\*c\* [d]\(javascript:e) #f" in line
    assert line.count("|") - line.count(r"\|") == 4


def test_csv_gives_a_spreadsheet_no_formula_to_run():
    odd = replace(SMALLER, recipe=Recipe(model=ModelRef(path="=cmd()")))
    rows = list(csv.DictReader(io.StringIO(render(table([ORIGINAL, odd]), "csv"))))
    assert rows[2]["label"].startswith("'=cmd()")
    assert float(rows[3]["delta"]) == -10e6


def test_markdown_has_a_line_for_each_run():
    lines = render(table([ORIGINAL, SMALLER]), "markdown").splitlines()
    assert [line[:2] for line in lines] == ["| "] * 4 + ["", "- "]
    assert lines[-1] == "- ▲ better, ▼ worse than the baseline, ≈ within noise."


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


QUESTIONS = [f"q{place}" for place in range(20)]


def answers(right: set[int], ids: list[str] = QUESTIONS) -> list[dict[str, Any]]:
    """Right to the questions at these places; wrong ones pick the third of three choices."""
    return [
        {
            "id": name,
            "question": f"What is {name}?",
            "choices": ["one", "two", "three"],
            "target": place % 2,
            "picked": place % 2 if place in right else 2,
            "log_likelihoods": [-1.0, -2.0, -3.0],
            "acc": int(place in right),
        }
        for place, name in enumerate(ids)
    ]


def accuracy(given: list[dict[str, Any]], kept: str, **details: object) -> Metric:
    value = sum(answer["acc"] for answer in given) / len(given)
    settings = {"task": "piqa", "shots": 0, "limit": 20, "main": True, "answers": kept, **details}
    return Metric("acc[piqa]", value, "share", "higher", stderr=0.1, details=settings)


def asked(before: list[dict[str, Any]], after: list[dict[str, Any]], **details: object):
    """The row of a run that answered `after`, beside a baseline that answered `before`."""
    kept = {"before": before, "after": after}
    first = replace(ORIGINAL, metrics=(accuracy(before, "before"),))
    second = replace(SMALLER, metrics=(accuracy(after, "after", **details),))
    return table([first, second], answers=kept.get)[1]


def test_same_questions_are_judged_together():
    row = asked(answers(set(range(20))), answers(set(range(10))))
    assert (row.gained, row.lost) == (0, 10)
    assert row.p == pytest.approx(2 * 0.5**10)
    assert row.delta == -0.5
    assert row.low is not None
    assert row.high is not None
    assert row.low < -0.5 < row.high < 0
    assert row.verdict == "worse"
    assert row.words == "worse: 0 gained, 10 lost of 20, p 0.002"


def test_a_few_flips_are_noise_though_the_errors_say_otherwise():
    before, after = answers(set(range(18))), answers(set(range(15)) | {19})
    row = asked(before, after)
    assert (row.gained, row.lost, row.verdict) == (1, 3, "same")
    without = replace(ORIGINAL, metrics=(replace(accuracy(before, "x"), stderr=0.01),))
    other = replace(SMALLER, metrics=(replace(accuracy(after, "y"), stderr=0.01),))
    assert table([without, other], answers=lambda _key: None)[1].verdict == "worse"
    assert table([without, other])[1].words == ""


@pytest.mark.parametrize(
    "after",
    [
        answers({1, 2}, QUESTIONS[::-1]),
        answers({1, 2}, QUESTIONS[:19]),
        [{name: v for name, v in answer.items() if name != "acc"} for answer in answers({1})]
        + [{"id": "more", "acc": 1}],
    ],
    ids=["in another order", "fewer", "others"],
)
def test_other_questions_are_not_judged_together(after):
    after = [{"acc": 0, **answer} for answer in after]
    row = asked(answers(set(range(20))), after)
    assert row.gained is None
    assert row.verdict in ("worse", "same")


def test_unlike_settings_are_not_judged_even_on_the_same_questions():
    row = asked(answers(set(range(20))), answers({1}), shots=5)
    assert row.badge == "shots 5, baseline 0"
    assert (row.verdict, row.gained, row.words) == ("", None, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split", "test"),
        ("version", "2.0"),
        ("shots", 5),
        ("limit", 50),
        ("questions", 3),
        ("seed", 1),
        ("digest", "d"),
        ("harness", "lm-eval 0.5"),
        ("processor", "another"),
    ],
)
def test_each_setting_of_a_task_or_a_clock_is_badged(name: str, value: object):
    row = asked(answers({1}), answers({1}), **{name: value})
    assert row.badge.startswith(f"{name} {value}, baseline ")


def test_answers_of_an_evaluation_are_read_once():
    given, read = answers({1, 2}), []

    def kept(key: str) -> list[dict[str, Any]]:
        read.append(key)
        return given

    metrics = tuple(replace(accuracy(given, "x"), name=f"{name}[piqa]") for name in ("acc", "acc2"))
    runs = [replace(ORIGINAL, metrics=metrics)]
    runs += [replace(SMALLER, key=f"k1-{n}", metrics=(accuracy(given, str(n)),)) for n in range(4)]
    table(runs, answers=kept)
    assert sorted(read) == ["0", "1", "2", "3", "x"]


def leaky(value: float) -> Metric:
    leak = {"items": 12, "of": 200, "sources": ["c4"]}
    return perplexity(value, leak=leak)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_tells_of_a_leak_and_of_unlike_settings(form: str):
    leaking = replace(SMALLER, metrics=(leaky(21.0),))
    other = replace(SMALLER, key="k1-c", metrics=(perplexity(22.0, window=9),))
    text = render(table([ORIGINAL, leaking, other]), form)
    assert "12 of 200 items share text with the calibration" in text
    assert "window 9, baseline 256" in text
    marks = {"latex": (r"21$\ddagger$", r"22$\dagger$"), "csv": ("", ""), "json": ("", "")}
    assert all(mark in text for mark in marks.get(form, ("21‡", "22†")))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_the_same_questions_showed(form: str):
    given = {"a": answers(set(range(12))), "b": answers(set(range(11)))}
    runs = [
        replace(ORIGINAL, metrics=(accuracy(given["a"], "a"),)),
        replace(SMALLER, metrics=(accuracy(given["b"], "b"),)),
    ]
    text = render(table(runs, answers=given.get), form)
    assert "within noise: 0 gained, 1 lost of 20, p 1.00" in text
    if form not in ("csv", "json"):
        assert "-15.0 to +0.0 pt" in text


def test_tables_show_the_metric_that_papers_do_and_data_all():
    other = replace(accuracy(answers({1}), ""), name="acc2[piqa]")
    other = replace(other, details={**other.details, "main": False})
    rows = table([replace(ORIGINAL, metrics=(accuracy(answers({1}), ""), other))])
    assert "acc2" not in render(rows, "markdown")
    assert "acc2" in render(rows, "csv")
    assert [row.main for row in rows] == [True, False]


def test_changes_are_told_as_people_read_them():
    def change(before: float, after: float, unit: str = "") -> str:
        metrics = [Metric("m", value, unit, "lower") for value in (before, after)]
        first, second = (
            replace(run, metrics=(metric,))
            for run, metric in zip((ORIGINAL, SMALLER), metrics, strict=True)
        )
        return format_cell(table([first, second])[1])

    assert change(20, 25) == "25 (+25.0 %) ▼"
    assert change(19.5, 15315) == "15,315 (×785) ▼"
    assert change(0, 0.25) == "0.25 (+0.25) ▼"
    assert change(0.5, 0.45, "share") == "45.0 % (-5.0 pt) ▲"
    assert change(30, 30) == "30"


def test_runs_of_one_description_are_told_apart_by_their_keys():
    twin = replace(SMALLER, key="k1-abcdefghi")
    labels = [row.label for row in table([SMALLER, twin]) if row.metric == "parameters"]
    assert labels == [f"{describe(SMALLER.recipe)} · b", f"{describe(SMALLER.recipe)} · abcdef"]


def test_flips_tell_both_picks_and_what_they_mean():
    before, after = answers({0, 1, 2}), answers({0, 2, 5})
    after[7] = {**after[7], "picked": 0}  # wrong as before, but otherwise
    after[8]["log_likelihoods"] = [-9.0, -9.0, -1.0]
    found = flipped(before, after)
    assert [(flip.id, flip.change) for flip in found] == [
        ("q1", "lost"),
        ("q5", "gained"),
        ("q7", "other"),
    ]
    lost = found[0]
    assert (lost.question, lost.target, lost.before, lost.after) == ("What is q1?", 1, 1, 2)
    assert lost.choices == ("one", "two", "three")
    assert lost.before_scores == lost.after_scores == (-1.0, -2.0, -3.0)


def test_flips_of_a_normalised_metric_are_of_its_own_picks():
    before, after = answers({0}), answers({0})
    for answer in (*before, *after):
        answer |= {"picked_norm": 2, "acc_norm": 0}
    after[3] |= {"picked_norm": 1, "acc_norm": 1}
    assert flipped(before, after) == []
    (flip,) = flipped(before, after, "acc_norm")
    assert (flip.id, flip.before, flip.after, flip.change) == ("q3", 2, 1, "gained")


def test_flips_of_texts_have_no_choices():
    before = [{"id": "a", "question": "2+2?", "target": "4", "picked": "4", "exact_match": 1}]
    after = [{**before[0], "picked": "5", "exact_match": 0}]
    (flip,) = flipped(before, after, "exact_match")
    assert (flip.choices, flip.before, flip.after, flip.change) == ((), "4", "5", "lost")


def test_flips_between_other_questions_are_refused():
    with pytest.raises(RecipeError, match="not asked the same questions"):
        flipped(answers({1}), answers({1}, QUESTIONS[::-1]))
