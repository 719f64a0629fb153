"""Zero-shot scores: equal to the harness's own, kept, guarded, and refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from laco import engine, parallel
from laco.context import Context
from laco.errors import CalibrationError, Cancelled, LacoError, NumericalError, RecipeError
from laco.evaluate import harness
from laco.evaluate.questions import pinned, tasks_of
from laco.evaluate.seen import Shown
from laco.evaluate.zero_shot import zero_shot
from laco.evaluations import Outcome, Request, ZeroShot
from laco.models import LoadedModel
from laco.recipe import Calibration, ModelRef, Prune, Recipe, Wanda
from laco.store import RunStore
from laco.tasks import BUNDLED, MMLU, SETS, expand

ARC = {
    "id": "q1",
    "question": {
        "stem": "What falls?",
        "choices": [{"text": "a stone", "label": "A"}, {"text": "a cloud", "label": "B"}],
    },
    "answerKey": "A",
}
TABLE = (
    "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\n"
    "8-1\tThe sun is\t(A) hot (B) a bit (cold) (C) wet (D) far away\twhole\tB\n"
)
RELEASED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {  # files, and the first row read
    "arc_easy": (
        {"ARC-Easy-Dev.jsonl": json.dumps(ARC)},
        {
            "id": "q1",
            "question": "What falls?",
            "choices": {"text": ["a stone", "a cloud"], "label": ["A", "B"]},
            "answerKey": "A",
        },
    ),
    "openbookqa": (
        {"test.tsv": TABLE},
        {
            "id": "8-1",
            "question_stem": "The sun is",
            "choices": {
                "text": ["hot", "a bit (cold)", "wet", "far away"],
                "label": ["A", "B", "C", "D"],
            },
            "answerKey": "B",
        },
    ),
    "piqa": (
        {
            "valid.jsonl": json.dumps({"goal": "Open it", "sol1": "Pull", "sol2": "Sing"}),
            "valid-labels.lst": "0\n",
        },
        {"goal": "Open it", "sol1": "Pull", "sol2": "Sing", "label": 0},
    ),
    "winogrande": (
        {
            "dev.jsonl": json.dumps(
                {"sentence": "A hit B so _ cried.", "option1": "A", "option2": "B", "answer": "2"}
            )
        },
        {"sentence": "A hit B so _ cried.", "option1": "A", "option2": "B", "answer": "2"},
    ),
    "boolq": (
        {"dev.jsonl": json.dumps({"question": "is it so", "passage": "It is.", "answer": True})},
        {"question": "is it so", "passage": "It is.", "answer": True, "label": 1},
    ),
    "lambada_openai": (
        {"lambada_openai.jsonl": json.dumps({"context": "a stone will", "continuation": "fall"})},
        {"text": "a stone will fall"},
    ),
}


class Plain(harness.Stock):
    """The harness's own model, one request at a time, in the place of ours."""

    shared = False

    def __init__(self, lm: LoadedModel, _context: Context) -> None:
        super().__init__(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=1)


def put(folder: Path, files: dict[str, str]) -> str:
    """The folder with these files in it, as a source of questions."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return f"file:{folder}"


def own_task(folder: Path, **more: str) -> str:
    """A task's YAML file beside two questions."""
    rows = [{"q": f"{n} and {n}", "a": n % 2} for n in range(3)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": "{data_files: {test: mine.jsonl}}",
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": '"{{q}} is"',
        "doc_to_choice": '["even", "odd"]',
        "doc_to_target": "a",
        "metadata": "{version: 3}",
        **more,
    }
    path = folder / "mine.yaml"
    path.write_text("\n".join(f"{name}: {value}" for name, value in lines.items()))
    return str(path)


@pytest.mark.parametrize("task", [task for task in BUNDLED if task not in MMLU] + [MMLU[0]])
def test_every_answer_is_that_of_the_harness(task: str, monkeypatch: pytest.MonkeyPatch):
    lm = tiny.loaded("llama")
    spec = ZeroShot(task=task, limit=1 if task in MMLU else 5)
    ours = zero_shot(lm, spec, Context())
    monkeypatch.setattr(harness, "Asking", Plain)
    theirs = zero_shot(lm, spec, Context())
    assert ours.metrics[0].details["shared_context"]
    assert [(m.name, m.value, m.stderr) for m in ours.metrics] == [
        (m.name, m.value, m.stderr) for m in theirs.metrics
    ]
    for mine, stock in zip(ours.answers, theirs.answers, strict=True):
        assert mine["log_likelihoods"] == pytest.approx(stock["log_likelihoods"], abs=1e-4)
        drop = {"log_likelihoods"}
        assert {k: v for k, v in mine.items() if k not in drop} == {
            k: v for k, v in stock.items() if k not in drop
        }


def test_last_words_are_asked_for_greedily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lm = tiny.loaded("llama")
    data = put(tmp_path, RELEASED["lambada_openai"][0])
    spec = ZeroShot(task="lambada_openai", data=data)
    ours = zero_shot(lm, spec, Context())
    monkeypatch.setattr(harness, "Asking", Plain)
    theirs = zero_shot(lm, spec, Context())
    assert {m.name for m in ours.metrics} == {"acc[lambada_openai]", "perplexity[lambada_openai]"}
    assert [m.value for m in ours.metrics] == pytest.approx(
        [m.value for m in theirs.metrics], rel=1e-4
    )
    assert {m.name: m.better for m in ours.metrics}["perplexity[lambada_openai]"] == "lower"


def test_a_name_tells_a_split_that_is_not_the_stock_one():
    found = zero_shot(tiny.loaded("llama"), ZeroShot(task="arc_easy", limit=2), Context())
    assert [metric.name for metric in found.metrics] == [
        "acc[arc_easy@validation]",
        "acc_norm[arc_easy@validation]",
    ]
    details = found.metrics[1].details
    assert (details["split"], details["stock_split"]) == ("validation", "test")
    assert (details["main"], details["questions"], details["version"]) == (True, 2, "1.0")


def test_a_group_is_the_mean_over_all_its_questions():
    found = zero_shot(tiny.loaded("llama"), ZeroShot(task="mmlu_other", limit=2), Context())
    subjects = {answer["task"] for answer in found.answers}
    (metric,) = found.metrics
    assert len(subjects) == 13
    assert len(found.answers) == metric.details["questions"] == 26
    assert metric.value == pytest.approx(sum(a["acc"] for a in found.answers) / 26)
    assert metric.stderr is not None
    assert metric.stderr > 0


def test_examples_stand_before_the_question_and_the_seed_chooses_them(
    monkeypatch: pytest.MonkeyPatch,
):
    seen: list[str] = []

    class Seeing(Plain):
        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            seen.extend(request.args[0] for request in requests)
            return super().loglikelihood(requests, disable_tqdm)

    monkeypatch.setattr(harness, "Asking", Seeing)
    lm = tiny.loaded("llama")
    for seed in (0, 0, 1):
        found = zero_shot(lm, ZeroShot(task="copa", limit=1, shots=2, seed=seed), Context())
        assert "\n\n" not in found.answers[0]["question"]
    first, again, other = (seen[at] for at in (0, 2, 4))
    assert first.count("\n\n") == 2
    assert first == again != other


@pytest.mark.parametrize("task", RELEASED)
def test_release_formats_are_read(task: str, tmp_path: Path):
    files, row = RELEASED[task]
    (asked,) = tasks_of(ZeroShot(task=task, data=put(tmp_path, files)))
    assert next(asked.rows(asked.split, 1)) == row


def test_columns_of_the_hub_are_read_for_any_task(tmp_path: Path):
    row = {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect"}
    data = put(tmp_path, {"copa.jsonl": json.dumps({**row, "label": 0})})
    (asked,) = tasks_of(ZeroShot(task="copa", data=data))
    assert next(asked.rows(asked.split, 1)) == {**row, "label": 0}


def test_a_task_of_ones_own(tmp_path: Path):
    found = zero_shot(tiny.loaded("llama"), ZeroShot(task=own_task(tmp_path)), Context())
    assert [answer["target"] for answer in found.answers] == [0, 1, 0]
    assert found.answers[1]["question"] == "1 and 1 is"
    assert found.metrics[0].details["version"] == "3"


def test_text_is_generated_by_the_harness_itself(tmp_path: Path):
    task = own_task(
        tmp_path,
        output_type="generate_until",
        doc_to_target='"{{a}}"',
        generation_kwargs='{until: ["\\n"], max_gen_toks: 4}',
        metric_list="[{metric: exact_match, aggregation: mean, higher_is_better: true}]",
    )
    told: list[str] = []
    context = Context("cpu", lambda _done, message: told.append(message))
    found = zero_shot(tiny.loaded("llama"), ZeroShot(task=task), context)
    (metric,) = found.metrics
    assert metric.name.startswith("exact_match[")
    assert metric.details["generative"]
    assert [answer["target"] for answer in found.answers] == ["0", "1", "0"]
    assert all(isinstance(answer["picked"], str) for answer in found.answers)
    assert "3 of 3 requests, written token by token: slow" in told


@pytest.mark.parametrize(
    ("fields", "files", "error", "sentence"),
    [
        ({"task": "nonsense"}, {}, RecipeError, "has no task 'nonsense'; of the bundle"),
        ({"task": "mmlu_stem", "data": "FOLDER"}, {}, RecipeError, "cannot be read from files"),
        ({"task": "piqa", "data": "FOLDER"}, {}, CalibrationError, "has no questions of piqa"),
        (
            {"task": "arc_easy", "data": "FOLDER"},
            {"ARC-Easy-Test.jsonl": "{}"},
            CalibrationError,
            "is not arc_easy as it was released",
        ),
        (
            {"task": "winogrande", "data": "FOLDER"},
            {"dev.jsonl": "not json"},
            CalibrationError,
            "line 1 is not a JSON record",
        ),
        (
            {"task": "winogrande", "data": "FOLDER"},
            {"dev.jsonl": ""},
            CalibrationError,
            "no question of winogrande",
        ),
        (
            {"task": "piqa", "data": "FOLDER"},
            {"valid.jsonl": "{}\n{}", "valid-labels.lst": "0"},
            CalibrationError,
            "2 questions and 1 labels",
        ),
        ({"task": "gone.yaml"}, {}, RecipeError, "gone.yaml does not exist"),
        ({"task": "hellaswag", "data": "hub"}, {}, CalibrationError, "of the bundle there are"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    fields: dict[str, str],
    files: dict[str, str],
    error: type[LacoError],
    sentence: str,
    tmp_path: Path,
):
    data = put(tmp_path, files)
    fields = {name: value.replace("FOLDER", data) for name, value in fields.items()}
    with pytest.raises(error, match=sentence) as caught:
        tasks_of(ZeroShot.model_validate(fields))
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_told_before_the_harness_looks(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CalibrationError, match="hub cannot be asked for gsm8k; of the bundle"):
        tasks_of(ZeroShot(task="gsm8k", data="hub"))


def test_code_in_a_task_is_not_run(tmp_path: Path):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    task = own_task(tmp_path, doc_to_target="!function evil.target")
    with pytest.raises(RecipeError, match="names Python functions, which are not run"):
        tasks_of(ZeroShot(task=task))


def test_a_number_that_is_not_finite_is_named():
    lm = tiny.loaded("llama")
    lm.layers[1].get_parameter("mlp.up_proj.weight")[:] = float("nan")
    with pytest.raises(NumericalError, match="copa, question 0: the log-likelihood of choice 0"):
        zero_shot(lm, ZeroShot(task="copa", limit=2), Context())


def test_cancelling_stops_the_questions():
    class Stopping(Context):
        def step(self, fraction: float, message: str) -> None:
            if "of" in message and "requests" in message:
                raise Cancelled

    with pytest.raises(Cancelled):
        zero_shot(tiny.loaded("llama"), ZeroShot(task="copa", limit=3), Stopping())


def test_the_pin_follows_the_questions(tmp_path: Path):
    data = put(tmp_path, RELEASED["boolq"][0])
    spec = ZeroShot(task="boolq", data=data)
    first = pinned(spec)
    assert first == pinned(spec)
    text = RELEASED["boolq"][0]["dev.jsonl"]
    put(tmp_path, {"dev.jsonl": text.replace("is it so", "is it not so")})
    assert pinned(spec) != first
    with pytest.raises(RecipeError, match="have changed since this was asked for"):
        zero_shot(tiny.loaded("llama"), first, Context())


@pytest.fixture
def ref(tmp_path: Path) -> ModelRef:
    return ModelRef(path=str(tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "model")))


def test_results_are_kept_with_every_answer(
    ref: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = RunStore(tmp_path / "store")
    request = Request(recipe=Recipe(model=ref), evaluations=(ZeroShot(task="copa", limit=3),))
    first = engine.run(request, store, Context())
    key = first["metrics"][0]["details"]["answers"]
    answers = store.answers(key)
    assert answers is not None
    assert [answer["id"] for answer in answers] == list({a["id"]: 0 for a in answers})
    assert len(answers) == 3

    def never(*_args: Any) -> Outcome:
        raise AssertionError("asked again")

    monkeypatch.setattr(parallel, "evaluate", never)
    assert engine.run(request, store, Context())["metrics"] == first["metrics"]
    assert store.answers("k1-0") is None
    assert store.answers("../runs") is None


def test_questions_from_the_calibration_text_are_told(ref: ModelRef, tmp_path: Path):
    passages = [f"word{n} " + " ".join(f"w{n}x{k}" for k in range(30)) for n in range(4)]
    (tmp_path / "text.txt").write_text("\n\n".join(passages[:2] * 40))
    rows = [{"question": "so", "passage": passage, "answer": True} for passage in passages]
    data = put(tmp_path, {"dev.jsonl": "\n".join(map(json.dumps, rows))})
    prune = Prune(
        method=Wanda(sparsity=0.5),
        calibration=Calibration(source=f"file:{tmp_path / 'text.txt'}", windows=8, length=256),
    )
    request = Request(
        recipe=Recipe(model=ref, steps=(prune,)), evaluations=(ZeroShot(task="boolq", data=data),)
    )
    (metric,) = engine.run(request, RunStore(tmp_path / "store"), Context())["metrics"]
    assert metric["details"]["leak"] == {
        "items": 2,
        "of": 4,
        "sources": [f"file:{tmp_path / 'text.txt'}"],
    }


def test_all_that_steps_saw_of_one_source_counts(tmp_path: Path):
    source = f"file:{tmp_path / 'text.txt'}"
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"text{n} " + "so it goes " * 40 for n in range(20))
    )
    steps = tuple(
        Prune(calibration=Calibration(source=source, windows=windows, length=64))
        for windows in (5, 2)
    )
    recipe = Recipe(model=ModelRef(path="somewhere"), steps=steps)
    assert {name: len(found) for name, found in Shown(recipe, tiny.tokenizer()).texts.items()} == {
        source: 7
    }


def test_sets_of_papers_are_made_of_known_tasks():
    for name, tasks in SETS.items():
        assert expand(name) == list(tasks)
        assert set(tasks) <= set(BUNDLED)
    assert expand("slicegpt, boolq,piqa") == [*SETS["slicegpt"], "boolq"]
