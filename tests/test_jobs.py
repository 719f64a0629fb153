"""A job's life as whoever submitted it sees it: files, states, and what failing is told."""

import io
import json
import math
import sqlite3
import sys
import time
from collections.abc import Callable

import pytest

from laco import Metric, ModelRef, Perplexity, Recipe, Request
from laco.errors import Cancelled, JobError, StoreError
from laco.jobs import InlineRunner, JobStatus, LocalRunner
from laco.queue import Queue
from laco.store import RunStore
from laco.worker import Reporter
from tests import fake_engine


def request_for(path: str) -> Request:
    return Request(recipe=Recipe(model=ModelRef(path=path)))


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path / "store")
    yield opened
    opened.close()


def claim(store: RunStore, slots: int) -> sqlite3.Row:
    """A job claimed as a scheduler does it."""
    row = Queue(store).claim(slots)
    assert row is not None
    return row


@pytest.fixture
def inline(store):
    return InlineRunner(store, fake_engine.run)


@pytest.fixture
def still(store, monkeypatch):
    """A runner whose scheduler never comes, so that jobs stay as they are put."""
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    return LocalRunner(store)


def test_job_is_done_with_its_result(inline):
    job = inline.submit(request_for("sleep:0.1"), "a nap")
    status = inline.status(job)
    assert (status.state, status.fraction, status.label) == ("done", 1.0, "a nap")
    assert status.result is not None
    assert status.result["answer"] == "sleep"
    assert status.attempt == 1
    assert status.error is None
    assert status.started is not None
    assert status.ended is not None
    assert status.created <= status.started <= status.ended
    assert not status.active
    assert status.request == request_for("sleep:0.1")
    assert json.loads((status.folder / "job.json").read_text())["recipe"]["model"]


def test_job_without_a_label_gets_its_recipes(inline):
    assert inline.status(inline.submit(request_for("org/Tiny"))).label == "Tiny"


def test_error_of_ours_is_told_as_its_sentence_and_traced_in_the_log(inline):
    job = inline.submit(request_for("fail"))
    status = inline.status(job)
    assert status.state == "failed"
    assert status.error == "The model is of cheese; choose another."
    assert status.result is None
    assert "Traceback" in inline.log(job)
    assert inline.log(job, tail=1).endswith("failed: The model is of cheese; choose another.")


def test_bug_is_told_by_its_kind(inline):
    job = inline.submit(request_for("bug"))
    assert inline.status(job).error == "ZeroDivisionError: one by none"
    assert 'raise ZeroDivisionError("one by none")' in inline.log(job)


def test_lack_of_memory_says_what_to_do(inline):
    error = inline.status(inline.submit(request_for("memory"))).error
    assert error is not None
    assert error.startswith("Out of memory while: ")
    assert "fewer or shorter windows" in error


def test_result_that_is_not_finite_fails_the_job(store):
    runner = InlineRunner(store, lambda *_: {"value": math.nan})
    status = runner.status(runner.submit(request_for("x")))
    assert status.state == "failed"
    assert status.error is not None
    assert "not finite" in status.error
    assert not (status.folder / "result.json").exists()


def test_what_there_is_so_far_is_told_before_the_end(store):
    seen: list[object] = []

    def run(_request, _store, context):
        (job,) = runner.jobs()
        seen.append(job.live)
        context.publish({"layers": [{"layer": 0, "error": 0.25}], "of": 2})
        deadline = time.monotonic() + 20
        while job.live is None and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(job.live)
        context.publish({"layers": [], "of": 3})
        context.publish({"layers": [], "of": 4})
        return {}

    runner = InlineRunner(store, run)
    status = runner.status(runner.submit(request_for("x")))
    assert seen == [None, {"layers": [{"layer": 0, "error": 0.25}], "of": 2}]
    assert status.live == {"layers": [], "of": 4}, "the newest is there at the end"


def test_live_number_that_is_not_finite_is_told_in_the_log_and_ends_nothing(store):
    def run(_request, _store, context):
        context.publish({"error": math.nan})
        return {}

    runner = InlineRunner(store, run)
    job = runner.submit(request_for("x"))
    assert runner.status(job).state == "done"
    assert runner.status(job).live is None
    assert "not finite" in runner.log(job)


def test_many_live_documents_are_written_at_most_twice_a_second(tmp_path, monkeypatch):
    written: list[str] = []
    monkeypatch.setattr("laco.worker.write_json", lambda path, *_, **__: written.append(path.name))
    reporter = Reporter(tmp_path, 1, io.StringIO())
    reporter.start()
    for count in range(100):
        reporter.publish({"of": count})
        time.sleep(0.005)
    reporter.end("done", None)
    assert 1 <= written.count("live.json") <= 4


def test_job_may_cancel_itself_and_is_cancelled_at_its_next_step(store):
    reached: list[str] = []

    def run(_request, _store, context):
        context.step(0.25, "a quarter")
        (job,) = [status.id for status in runner.jobs()]
        runner.cancel(job)
        reached.append(runner.status(job).message)
        context.step(0.5, "a half")
        reached.append("too far")
        return {}

    runner = InlineRunner(store, run)
    status = runner.status(runner.submit(request_for("x")))
    assert status.state == "cancelled"
    assert status.fraction == 0.25
    assert reached == ["Stopping"]


def test_work_stopped_without_a_wish_is_no_cancelled_job(store):
    def run(*_):
        raise Cancelled

    runner = InlineRunner(store, run)
    with pytest.raises(Cancelled):
        runner.submit(request_for("x"))
    (row,) = Queue(store).live()
    assert Queue(store).settle(row) == "queued"


def test_engine_gets_the_store_and_its_results_are_there(store):
    def run(request, given, _context):
        recipe = Recipe(model=ModelRef(path="x", revision="content:1", dtype="float32"))
        given.add_model(recipe.key, recipe)
        given.add_metrics(recipe.key, request.evaluations[0], [Metric("p", 1.0, "", "lower")])
        return {"key": recipe.key}

    runner = InlineRunner(store, run)
    request = Request(recipe=Recipe(model=ModelRef(path="x")), evaluations=(Perplexity(),))
    status = runner.status(runner.submit(request))
    assert status.result is not None
    assert store.metrics(status.result["key"], Perplexity()) == (Metric("p", 1.0, "", "lower"),)


def test_waiting_job_is_cancelled_at_once(still):
    job = still.submit(request_for("x"))
    assert still.status(job).state == "queued"
    assert [status.id for status in still.active()] == [job]
    still.cancel(job)
    assert still.status(job).state == "cancelled"
    assert still.active() == []


def test_what_is_done_stays_done(store, inline):
    job = inline.submit(request_for("sleep:0"))
    before = inline.status(job)
    inline.cancel(job)
    Queue(store).fail(Queue(store).row(job), "late")
    assert inline.status(job) == before


def test_wish_to_cancel_that_comes_after_the_end_does_not_undo_it(store, still):
    job = still.submit(request_for("x"))
    row = claim(store, 1)
    reporter = Reporter(still.status(job).folder, row["attempt"], sys.stderr)
    reporter.start()
    reporter.end("done", None)
    still.cancel(job)
    assert still.status(job).state == "done"
    assert Queue(store).settle(Queue(store).row(job)) == "done"
    assert still.status(job).state == "done"


def test_wish_to_cancel_is_not_lost_when_the_worker_dies_just_then(store, still):
    job = still.submit(request_for("x"))
    row = claim(store, 1)
    still.cancel(job)
    Queue(store).settle(row)  # as it was read before the wish
    assert Queue(store).claim(2) is None
    assert Queue(store).settle(Queue(store).row(job)) == "cancelled"


def test_retry_is_a_new_job_with_the_same_request(inline):
    first = inline.submit(request_for("fail"), "cheese")
    second = inline.retry(first)
    assert second != first
    assert [status.id for status in inline.jobs()] == [second, first]
    assert inline.status(second).request == inline.status(first).request
    assert inline.status(second).label == "cheese"


def test_job_that_waits_cannot_be_retried(still):
    job = still.submit(request_for("x"))
    with pytest.raises(JobError, match="is queued; wait for its end"):
        still.retry(job)


@pytest.mark.parametrize("method", ["status", "cancel", "retry", "log"])
def test_unknown_job_is_said(still, method):
    with pytest.raises(JobError, match=r"There is no job nope .*laco jobs"):
        getattr(still, method)("nope")


def test_request_that_no_worker_could_read_is_refused(still, store):
    broken = Request.model_construct(recipe=Recipe(model=ModelRef(path="x")), evaluations=(3,))
    with (
        pytest.warns(UserWarning, match="Pydantic serializer"),
        pytest.raises(JobError, match="cannot be carried out: evaluations"),
    ):
        still.submit(broken)
    assert Queue(store).rows() == []


def test_job_that_cannot_be_written_is_not_queued(still, store):
    (store.folder / "jobs").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        still.submit(request_for("x"))
    assert Queue(store).rows() == []


def test_job_of_another_version_does_not_hide_the_others(still, store):
    old, new = still.submit(request_for("x")), still.submit(request_for("x"))
    with store.index.transaction() as index:
        index.execute("UPDATE jobs SET request = '{\"a\": 1}' WHERE id = ?", (old,))
    assert [status.id for status in still.jobs()] == [new]
    with pytest.raises(JobError, match="another version of laco"):
        still.status(old)


def test_job_goes_to_one_of_many_claimers(store, still):
    jobs = [still.submit(request_for("x")) for _ in range(3)]
    queue = Queue(store)
    claimed = [claim(store, 2), claim(store, 2)]
    assert [row["id"] for row in claimed] == jobs[:2]  # the oldest first
    assert [row["slot"] for row in claimed] == [0, 1]
    assert Queue(store).claim(2) is None
    queue.fail(claimed[0], "no")
    third = claim(store, 2)
    assert (third["id"], third["slot"]) == (jobs[2], 0)


def test_claim_whose_worker_never_came_waits_again_after_a_while(store, still, monkeypatch):
    job = still.submit(request_for("x"))
    queue = Queue(store)
    row = claim(store, 1)
    assert not queue.take_back(row)
    assert still.status(job).state == "starting"
    monkeypatch.setattr("laco.queue._ORPHANED_SECONDS", 0.0)
    assert queue.take_back(row)
    assert (still.status(job).state, still.status(job).attempt) == ("queued", 0)


def test_report_of_an_earlier_attempt_is_not_believed(store, still):
    job = still.submit(request_for("x"))
    queue = Queue(store)
    first = claim(store, 1)
    reporter = Reporter(still.status(job).folder, 1, sys.stderr)
    reporter.start()
    reporter.progress(0.7, "far")
    reporter.end("running", None)
    assert still.status(job).fraction == 0.7
    queue.settle(first)
    claim(store, 1)
    status = still.status(job)
    assert (status.attempt, status.fraction, status.state) == (2, 0.0, "starting")
    assert status.message.endswith("trying again, attempt 2 of 3")


def test_progress_is_written_at_most_twice_a_second_and_the_last_word_arrives(
    tmp_path, monkeypatch
):
    written = []
    reporter = Reporter(tmp_path, 1, sys.stderr)
    write = reporter._write
    monkeypatch.setattr(reporter, "_write", lambda *word: written.append(word) or write(*word))
    reporter.start()
    begin = time.monotonic()
    for number in range(400):
        reporter.progress(number / 400, f"step {number}")
        time.sleep(0.002)
    lasted = time.monotonic() - begin
    assert len(written) <= 2 + lasted / 0.5
    wait_for(lambda: json.loads((tmp_path / "status.json").read_text())["message"] == "step 399")
    reporter.end("running", None)


def test_time_left_follows_from_what_is_done(tmp_path):
    reporter = Reporter(tmp_path, 1, sys.stderr)
    reporter.start()
    assert json.loads((tmp_path / "status.json").read_text())["seconds_left"] is None
    reporter._started -= 30
    reporter.progress(0.25, "")
    reporter.end("running", None)
    left = json.loads((tmp_path / "status.json").read_text())["seconds_left"]
    assert 90 <= left < 100


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once `condition` holds. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def ended(runner: LocalRunner, job: str, seconds: float = 60.0) -> JobStatus:
    """The status of a job at its end."""
    wait_for(lambda: not runner.status(job).active, seconds)
    return runner.status(job)
