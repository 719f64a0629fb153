"""Accuracy on the harness's tasks: metrics with their errors, and every question's answer.

It knows neither where questions are from (`questions.py`) nor how they are asked (`harness.py`).
Next: `harness.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laco.errors import CalibrationError, NumericalError, RecipeError
from laco.evaluations import Metric, Outcome
from laco.tasks import BUNDLED

if TYPE_CHECKING:
    from laco.context import Context
    from laco.evaluate.questions import Asked
    from laco.evaluations import ZeroShot
    from laco.models import LoadedModel

BOOTSTRAPS = 1000  # for the errors of metrics that are no means
SHARES = ("acc", "acc_norm", "acc_mutual_info", "acc_bytes", "exact_match", "f1")  # of questions
LABELS = ("sample_len", "alias", "name", "sample_count")  # of a result, that are no metric


def zero_shot(lm: LoadedModel, spec: ZeroShot, context: Context) -> Outcome:
    """The task's metrics, a group's being means over all its questions, and the answers.

    The same as the harness gives for the same questions. Raises what `questions.tasks_of` raises,
    and `NumericalError` naming the question whose log-likelihood is not finite.
    """
    import lm_eval
    from jinja2 import TemplateError
    from lm_eval.evaluator import evaluate  # seconds, for this alone

    from laco.evaluate.harness import Asking
    from laco.evaluate.questions import digest, tasks_of

    context.step(0.0, f"reading {spec.task}")
    asked = tasks_of(spec)
    pinned = digest(spec, asked)
    if spec.pinned not in (None, pinned):
        raise RecipeError(
            f"The questions of {spec.task} have changed since this was asked for; ask again."
        )
    for one in asked:
        if one.task.get_config("num_fewshot") != 0:
            one.task.set_config("num_fewshot", spec.shots)
        one.task.set_fewshot_seed(spec.seed)
    asking = Asking(lm, context)
    try:
        found: Any = evaluate(
            asking,
            {"tasks": {one.name: one.task for one in asked}, "groups": {}, "group_map": {}},
            limit=spec.limit,
            bootstrap_iters=BOOTSTRAPS,
            log_samples=True,
        )
    except TemplateError as error:
        raise RecipeError(
            f"A template of {spec.task} cannot be filled in ({error}); mend it."
        ) from None
    details = {
        "task": spec.task,
        "split": asked[0].split,
        "stock_split": asked[0].stock_split,
        "version": str(asked[0].task.VERSION),
        "shots": spec.shots,
        "limit": spec.limit,
        "seed": spec.seed,
        "data": spec.data,
        "digest": pinned,
        "harness": f"lm-eval {lm_eval.__version__}",
        "shared_context": asking.shared,
        "generative": any(one.task.OUTPUT_TYPE == "generate_until" for one in asked),
    }
    answers = [_answer(one, sample) for one in asked for sample in found["samples"][one.name]]
    if not answers:
        raise CalibrationError(f"{spec.task} has no questions here; choose other data for it.")
    metrics = _metrics(spec, asked, found, {**details, "questions": len(answers)})
    return Outcome(metrics, tuple(answers))


def _metrics(
    spec: ZeroShot, asked: Sequence[Asked], found: Mapping[str, Any], details: dict[str, Any]
) -> tuple[Metric, ...]:
    """One metric for each that the harness reports, over all tasks of the group."""
    from lm_eval.api.metrics import pooled_sample_stderr

    sizes = [len(found["samples"][one.name]) for one in asked]
    results = [found["results"][one.name] for one in asked]
    higher = found["higher_is_better"][asked[0].name]
    split, stock = details["split"], details["stock_split"]
    label = spec.task if split == stock else f"{spec.task}@{split}"
    main = BUNDLED[spec.task].main if spec.task in BUNDLED else "acc"
    metrics: list[Metric] = []
    for name, value in results[0].items():
        metric, _, chosen = name.partition(",")
        if metric in LABELS or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        values = [float(result[name]) for result in results]
        errors = [result.get(f"{metric}_stderr,{chosen}") for result in results]
        known = [float(error) for error in errors if isinstance(error, int | float)]
        stderr = pooled_sample_stderr(known, sizes) if len(known) == len(sizes) else None
        if len(sizes) == 1:
            stderr = known[0] if known else None
        mean = sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
        extra = "" if chosen in ("none", "") else f", {chosen}"
        metrics.append(
            Metric(
                name=f"{metric}[{label}{extra}]",
                value=mean,
                unit="share" if metric in SHARES else "",
                better="higher" if higher.get(metric, True) else "lower",
                stderr=None if stderr is None or not math.isfinite(stderr) else float(stderr),
                details={**details, "main": metric == main},
            )
        )
    if not metrics:
        raise RecipeError(f"The harness gave no number for {spec.task}; its task has no metric.")
    return tuple(metrics)


def _answer(asked: Asked, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The harness's record of a question as JSON data (see `evaluations.Outcome`)."""
    answer: dict[str, Any] = {"id": sample["doc_hash"][:16], "task": asked.name}
    pairs = [(str(context), str(rest)) for context, rest, *_ in sample["arguments"]]
    answer["question"] = _question(asked, sample)
    if asked.task.OUTPUT_TYPE == "multiple_choice":
        scores = [float(score) for score, _ in sample["filtered_resps"]]
        for place, score in enumerate(scores):
            if not math.isfinite(score):
                raise NumericalError(
                    f"{asked.name}, question {sample['doc_id']}: the log-likelihood of choice "
                    f"{place} is not finite; the weights are broken, or too large for this number "
                    "format."
                )
        same = len({context for context, _ in pairs}) == 1
        choices = [rest if same else context + rest for context, rest in pairs]
        lengths = [max(1, len(rest.lstrip())) for _, rest in pairs]
        answer |= {
            "choices": [choice.strip() for choice in choices],
            "target": sample["target"],
            "picked": max(range(len(scores)), key=scores.__getitem__),
            "picked_norm": max(range(len(scores)), key=lambda n: scores[n] / lengths[n]),
            "log_likelihoods": scores,
        }
    else:
        answer |= {"choices": [], "target": str(sample["target"])}
        answer["picked"] = str(sample["filtered_resps"][0])
    for metric in sample["metrics"]:
        value = sample[metric]
        if isinstance(value, int | float):
            answer[metric] = value
    return answer


def _question(asked: Asked, sample: Mapping[str, Any]) -> str:
    """The question alone, without the examples before it."""
    text = asked.task.doc_to_text(sample["doc"])
    if isinstance(text, str):
        return text
    return str(sample["doc"].get("sentence") or sample["arguments"][0][0])
