"""What charts draw, from rows: names in order, one row for each run, the front, tasks."""

from dataclasses import replace

from laco import columns
from laco.evaluations import Metric
from laco.report import pareto, table
from tests.test_report import ORIGINAL, SMALLER, accuracy, answers, parameters, perplexity

PPL = perplexity(0).name


def test_quality_and_cost_are_told_apart_the_usual_ones_first():
    metrics = (
        accuracy(answers({1}), ""),
        parameters(5),
        Metric("decode[batch 1]", 9, "tokens/s", "higher"),
        Metric("bytes", 9, "B", "lower"),
        Metric("kl[x]", 0.1, "nats/token", "lower"),
        perplexity(20),
    )
    rows = table([replace(ORIGINAL, metrics=metrics)])
    assert columns.qualities(rows) == [PPL, "kl[x]", "acc[piqa]"]
    assert columns.costs(rows) == ["parameters", "bytes", "decode[batch 1]"]


def test_the_text_that_more_runs_were_measured_on_comes_first():
    few = replace(perplexity(5), name="perplexity[c4]")
    runs = [replace(ORIGINAL, metrics=(few, perplexity(20))), SMALLER]
    assert columns.qualities(table(runs)) == [PPL, "perplexity[c4]"]


def test_of_several_rows_the_comparable_one_is_drawn():
    twice = replace(SMALLER, metrics=(perplexity(30, window=9), perplexity(25)))
    assert columns.of_metric(table([ORIGINAL, twice]), PPL)["k1-b"].value == 25
    alone = replace(SMALLER, metrics=(perplexity(30, window=9),))
    assert columns.of_metric(table([ORIGINAL, alone]), PPL)["k1-b"].badge


def test_front_is_that_of_the_runs():
    beaten = replace(SMALLER, key="k1-c", metrics=(perplexity(26), parameters(95e6)))
    bare = replace(SMALLER, key="k1-d", metrics=(perplexity(1),))
    runs = [beaten, ORIGINAL, SMALLER, bare]
    found = columns.against(table(runs, ORIGINAL), PPL, "parameters")
    assert [row.key for row in found.quality] == ["k1-c", "k1-a", "k1-b"]
    assert [found.cost[place].key for place in found.front] == pareto(runs, PPL, "parameters")


def test_tasks_have_their_main_metric_under_their_own_name():
    side = replace(accuracy(answers({1}), "", main=False), name="acc_norm[piqa]")
    other = replace(accuracy(answers({2, 3}), "", task="arc_easy"), name="acc[arc_easy@validation]")
    first = replace(ORIGINAL, metrics=(accuracy(answers({1}), ""), side, other, perplexity(3)))
    second = replace(SMALLER, metrics=(accuracy(answers({4, 5}), ""),))
    found = columns.by_task(table([first, second]))
    assert {task: list(of_run) for task, of_run in found.items()} == {
        "piqa": ["k1-a", "k1-b"],
        "arc_easy@validation": ["k1-a"],
    }
    assert found["piqa"]["k1-b"].value == 0.1
