"""What is typed reads back as the same evaluations, and metrics tell what they were measured by."""

import pytest

from laco import Metric
from laco.cli.arguments import read_evaluations
from laco.commands import asked, command, run_again, typed
from laco.evaluations import (
    Degeneration,
    Divergence,
    Footprint,
    Latency,
    Perplexity,
    ZeroShot,
)

SPECS = [
    (Perplexity(),),
    (Perplexity(source="bundled:wikipedia@calibration", window=256, windows=None),),
    (Divergence(windows=3), Footprint(), Degeneration(tokens=9), Latency(batch=2)),
    (ZeroShot(task="hellaswag"), ZeroShot(task="piqa")),
    (ZeroShot(task="hellaswag", shots=5, limit=None), ZeroShot(task="piqa", shots=5, limit=None)),
    (ZeroShot(task="truthfulqa_mc1", data="hub"),),
]


@pytest.mark.parametrize("specs", SPECS)
def test_what_is_typed_reads_back_as_the_same(specs):
    read = [spec for word in typed(specs) for spec in read_evaluations(word)]
    assert read == list(specs)


def test_tasks_that_are_asked_alike_share_a_word():
    specs = [ZeroShot(task="hellaswag"), ZeroShot(task="piqa", limit=9), ZeroShot(task="boolq")]
    assert typed(specs) == ["zero-shot:hellaswag,boolq", "zero-shot:piqa,limit=9"]


def test_two_texts_have_a_word_each():
    specs = [Perplexity(source="c4"), Perplexity(source="wikitext2")]
    assert typed(specs) == ["perplexity:c4", "perplexity:wikitext2"]


def test_a_shell_gets_each_word_as_it_is():
    told = command("my model", [ZeroShot(task="piqa", data="file:/a b")])
    assert told == "laco evaluate 'my model' 'zero-shot:piqa,data=file:/a b'"
    assert run_again([Footprint()]) == "laco run recipe.json --evaluate footprint"
    assert run_again([]) == "laco run recipe.json"


def metric(name: str, **details: object) -> Metric:
    return Metric(name, 1.0, "", "lower", details=details)


def test_metrics_tell_what_they_were_measured_by():
    task = {"task": "piqa", "data": "bundled", "shots": 2, "limit": 50, "seed": 0, "split": "x"}
    speed = {"prompt": 16, "generate": 8, "repeats": 2}
    found = asked(
        [
            metric("perplexity[c4]", source="c4", window=256, stride=256, windows=9, bos=True),
            metric("kl[c4]", source="c4", window=128, windows=8),
            metric("layers"),
            metric("zeros"),
            metric("acc[piqa]", **task),
            metric("acc_norm[piqa]", **task),
            metric("prefill[batch 1]", batch=1, **speed),
            metric("decode[batch 4]", batch=4, **speed),
            metric("degenerate", tokens=48),
            metric("seconds"),
        ]
    )
    assert found == [
        Perplexity(source="c4", window=256, windows=9),
        Divergence(source="c4", window=128),
        Footprint(),
        ZeroShot(task="piqa", shots=2, limit=50),
        Latency(prompt=16, generate=8, batch=4, repeats=2),
        Degeneration(),
    ]


def test_a_clock_for_one_text_alone_is_kept():
    speed = {"prompt": 16, "generate": 8, "repeats": 2, "batch": 1}
    assert asked([metric("decode[batch 1]", **speed)]) == [
        Latency(prompt=16, generate=8, batch=1, repeats=2)
    ]


def test_details_that_no_evaluation_would_leave_are_passed_over():
    assert asked([metric("acc[x]", task="x", limit=0), metric("degenerate", tokens="many")]) == []
