"""Compare and Evaluate through AppTest: shown numbers, addresses, jobs."""

import json

import pytest
import streamlit as st

from laco.evaluations import Request, ZeroShot
from laco.tasks import SETS
from laco.ui import questions, session
from laco.ui.session import MEASURED
from tests.pages import prepared
from tests.pages.test_pages import click, words
from tests.test_report import answers


def words_of_charts(at) -> list[str]:
    return [chart.proto.alt for chart in at.get("plotly_chart")]


def tables(at) -> list:
    return [element.value for element in at.dataframe]


def test_differences_on_the_same_questions_are_judged(open_page, keys):
    at = open_page("compare")
    judged = next(table for table in tables(at) if "verdict" in table)
    of_pruned = judged[judged["run"] == "my-model, Wanda 50 % by sensitivity"]
    assert list(of_pruned["metric"]) == ["acc_norm[hellaswag]", "acc_norm[arc_easy@validation]"]
    right = [
        [answer["acc"] for answer in prepared.answers("hellaswag", name)]
        for name in ("original", "pruned")
    ]
    gained = sum(after > before for before, after in zip(*right, strict=True))
    lost = sum(after < before for before, after in zip(*right, strict=True))
    assert f"worse: {gained} gained, {lost} lost of 200" in of_pruned["verdict"].iloc[0]
    row = at.dataframe[0].value.loc["acc_norm[hellaswag]"]
    assert row["my-model, Wanda 50 % by sensitivity"].endswith("▼")
    near = judged[judged["run"].str.contains("compensated")]["verdict"]
    told = at.dataframe[0].value.loc[:, near.index.map(judged["run"].get)[0]]
    for metric, verdict in zip(of_pruned["metric"], near, strict=True):
        assert ("≈" in told[metric]) == verdict.startswith("within noise")


def test_a_leak_is_badged(open_page, keys):
    at = open_page("compare")
    assert any("12 of 200 items share text" in element.value for element in at.markdown)
    row = at.dataframe[0].value.loc["acc_norm[hellaswag]"]
    assert [name for name, cell in row.items() if "‡" in cell] == [
        "my-model, Wanda 50 % by sensitivity, compensated (laco+)"
    ]


def test_charts_tell_their_numbers(open_page, keys):
    told = words_of_charts(open_page("compare"))
    for wanted in (
        "perplexity[bundled:wikipedia@heldout]: my-model 19.5",
        "perplexity[bundled:wikipedia@heldout] against parameters of 6 runs",
        "Accuracy by task. hellaswag: my-model ",
    ):
        assert any(text.startswith(wanted) for text in told), wanted


def test_an_address_reopens_the_view(open_page, keys):
    run = "my-model, collapse best-first (KL, drop) to 27 layers"
    at = open_page(
        "compare",
        runs=[keys["original"], keys["searched"], keys["pruned"]],
        base=keys["pruned"],
        quality="acc_norm[hellaswag]",
        cost="bytes",
        run=run,
        task="arc_easy@validation",
        find="question 17",
        diff="false",
    )
    chosen = {box.label: box.value for box in at.selectbox}
    assert chosen["Baseline"] == keys["pruned"]
    assert chosen["Quality"] == "acc_norm[hellaswag]"
    assert chosen["Against"] in ("bytes", keys["pruned"])
    assert (chosen["Run"], chosen["Task"]) == (keys["searched"], "arc_easy@validation")
    assert at.text_input[0].value == "question 17"
    assert at.toggle[0].value is False
    assert any("against bytes" in text for text in words_of_charts(at))


def test_flipped_questions_are_shown_with_their_text(open_page, keys):
    at = open_page("compare", runs=[keys["original"], keys["pruned"]])
    table = next(found for found in tables(at) if "change" in found)
    before = prepared.answers("hellaswag", "original")
    after = prepared.answers("hellaswag", "pruned")
    changed = [a for a, b in zip(before, after, strict=True) if a["picked"] != b["picked"]]
    assert list(table["question"]) == [answer["question"] for answer in changed]
    assert table["right"].iloc[0] == changed[0]["choices"][changed[0]["target"]]
    at.text_input[0].set_value("d7").run()
    shown = next(found for found in tables(at) if "change" in found)
    wanted = [a for a in changed if any("d7" in text for text in (a["question"], *a["choices"]))]
    assert list(shown["question"]) == [answer["question"] for answer in wanted]
    choices = next(found for found in tables(at) if "picked before" in found)
    assert list(choices["log-likelihood before"]) == wanted[0]["log_likelihoods"]
    at.segmented_control(key="change").set_value("gained").run()
    assert not at.exception


def test_words_to_look_for_may_stand_anywhere():
    flips = questions.flipped(answers({1}), answers({2, 12}))
    assert [flip.id for flip in questions.matching(flips, "what Q1")] == ["q1", "q12"]
    assert [flip.id for flip in questions.matching(flips, "THREE what", "lost")] == ["q1"]
    assert questions.matching(flips, "nowhere") == []


def test_runs_without_answers_say_where_to_get_them(open_page, keys):
    at = open_page("compare", runs=[keys["tuned"], keys["dropped"]])
    assert "ask some on Evaluate" in words(at)
    assert "ask for them on the Evaluate page" in words(at)


def test_other_questions_give_a_sentence(open_page, keys):
    given = answers({1})
    metrics = prepared.task_metrics("hellaswag", given)
    session.store().add_metrics(keys["tuned"], ZeroShot(task="hellaswag"), metrics, given)
    at = open_page("compare", runs=[keys["original"], keys["tuned"]])
    assert any("not asked the same questions" in info.value for info in at.info)


def test_grid_shows_what_is_measured(open_page, keys):
    at = open_page("evaluate")
    table = at.dataframe[0].value
    assert len(table) == 6
    row = table.loc["my-model, Wanda 50 % by sensitivity, compensated (laco+)"]
    assert row["perplexity"] == "23.5 ± 0.6"
    assert row["KL, nats/token"] == "–"
    assert row["hellaswag"].startswith("47.0‡ ± 3.5 %")
    assert row["piqa"] == "–"
    missing = (table == "–").to_numpy().sum()
    assert f"**{missing} cells in 6 runs are missing.**" in words(at)


def test_what_is_missing_is_started_once_a_run(open_page, keys, waiting):
    at = open_page("evaluate", runs=[keys["original"], keys["pruned"]], tasks="piqa")
    at.multiselect(key="what").set_value(["perplexity", "footprint", "divergence"]).run()
    at.number_input(key="evaluate.tasks.limit").set_value(50).run()
    shown = json.loads(at.code[0].value)
    typed = at.code[1].value.splitlines()
    click(at, "Start what is missing")
    sent = {status.request.recipe.key: status for status in waiting.jobs()}
    assert set(sent) == {keys["original"], keys["pruned"]}
    for status in sent.values():
        kinds = [spec.kind for spec in status.request.evaluations]
        assert kinds == ["divergence", "zero_shot"]
        assert status.request.evaluations[1] == ZeroShot(task="piqa", limit=50)
        assert status.label.startswith("Measure my-model")
    assert [Request.model_validate(document) for document in shown] == [
        sent[keys[name]].request for name in ("original", "pruned")
    ]
    key = keys["original"][:11]
    assert typed[0] == (f"laco evaluate {key} kl:bundled:wikipedia@heldout zero-shot:piqa,limit=50")
    assert set(at.dataframe[0].value["piqa"]) == {"⏳ queued"}
    assert "Nothing is missing." in words(at)
    assert next(b for b in at.button if b.label == "Start what is missing").disabled


def test_a_running_job_marks_its_cells(open_page, keys, waiting):
    run = session.store().run(keys["original"])
    assert run
    waiting.submit(Request(recipe=run.recipe, evaluations=(ZeroShot(task="piqa"),)))
    with session.store().index.transaction() as index:
        index.execute("UPDATE jobs SET state = 'running'")
    at = open_page("evaluate", tasks="piqa")
    column = at.dataframe[0].value["piqa"]
    assert column["my-model"] == "▶ running"
    assert list(column).count("–") == 5


def test_a_set_stands_for_its_tasks(open_page, keys):
    at = open_page("evaluate", tasks="llm-pruner: a set of 7")
    assert [name for name in SETS["llm-pruner"] if name in at.dataframe[0].value] == list(
        SETS["llm-pruner"]
    )


def test_the_chosen_model_can_be_measured_before_anything_was_run(open_page, waiting, model):
    at = open_page("evaluate", model=str(model))
    assert "Run the demo" in at.info[0].value
    click(at, "Start what is missing")
    (job,) = waiting.jobs()
    assert job.request.recipe.steps == ()
    assert {spec.kind for spec in MEASURED} < {spec.kind for spec in job.request.evaluations}
    assert at.code == [] or "laco evaluate" not in at.code[0].value


def test_no_runs_or_nothing_to_measure_asks_for_some(open_page, keys):
    at = open_page("evaluate")
    at.multiselect(key="evaluate.runs").set_value([]).run()
    assert "Choose runs, and what to measure" in at.info[0].value


@pytest.mark.parametrize("page", ["compare", "evaluate"])
def test_work_of_a_page_does_not_grow_with_the_runs(page, open_page, model, tmp_path, monkeypatch):
    """The same queries and files for 500 runs as for 12: those of the runs that are shown."""
    done = {}
    for runs in (12, 500):
        folder = tmp_path / str(runs)
        prepared.crowd(folder, model, runs)
        monkeypatch.setenv("LACO_STORE", str(folder))
        st.cache_data.clear()
        store = session.store()
        queries, files = [], []
        with monkeypatch.context() as patched:
            patched.setattr(store.index, "rows", counted(store.index.rows, queries))
            patched.setattr(store, "answers", counted(store.answers, files))
            at = open_page(page, model=str(model))
        assert len(at.multiselect[0].options) == runs
        assert len(at.multiselect[0].value) == 8
        done[runs] = (len(queries), len(files))
    assert done[12] == done[500]
    assert done[500][0] < 40


def counted(asked, calls: list):
    """The same function, which notes what it is asked for."""

    def counting(what: str, *values):
        calls.append(what)
        return asked(what, *values)

    return counting


def test_a_new_address_is_followed_though_other_runs_were_chosen_before(open_page, keys):
    at = open_page("compare", runs=[keys["original"], keys["pruned"]])
    at.multiselect[0].set_value([keys["original"], keys["tuned"]]).run()
    assert at.multiselect[0].value == [keys["original"], keys["tuned"]]
    assert at.query_params["runs"] == [keys["original"][:11], keys["tuned"][:11]]
    at.query_params["runs"] = [keys["searched"][:11]]
    at.run()
    assert at.multiselect[0].value == [keys["searched"]]


def test_a_run_that_was_removed_is_no_longer_chosen(open_page, keys):
    at = open_page("compare", runs=[keys["original"], keys["pruned"]])
    session.store().remove(keys["pruned"])
    at.run()
    assert not at.exception
    assert at.multiselect[0].value == [keys["original"]]
