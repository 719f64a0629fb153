"""Exporting from the Model page: what is asked for, and what came out of it."""

from pathlib import Path

import pytest

from laco.disk import write_json
from laco.evaluations import Export
from tests.pages.test_pages import click, words

CHECKS = [
    {"name": "loading", "ok": True, "detail": "missing 0"},
    {"name": "logits", "ok": False, "detail": "0.5 apart"},
]
NOTES = [{"name": "vLLM", "ready": True, "detail": "uniform shapes", "as_of": "2026-05"}]


def opened(open_page, keys, folder: Path):
    at = open_page("model", model=keys["dropped"])
    box = next(box for box in at.text_input if box.label == "Folder")
    box.set_value(str(folder)).run()
    assert not at.exception
    return at


def ended(waiting, job: str, state: str, **files) -> None:
    """Let a job have ended so, as its worker would leave it."""
    for name, document in files.items():
        write_json(waiting.queue.folder / job / f"{name}.json", document)
    row = waiting.queue.row(job)
    error = "The export failed its check 'logits'." if state == "failed" else None
    waiting.queue._end(row, state, error, {})


def test_an_untouched_model_has_nothing_to_export(open_page, keys, model):
    assert "Export" not in words(open_page("model", model=str(model)))


def test_the_button_sends_an_export(open_page, keys, waiting, tmp_path):
    at = opened(open_page, keys, tmp_path / "out")
    assert f"laco export {keys['dropped'][:11]} {tmp_path / 'out'}" in [c.value for c in at.code]
    click(at, "Export and check")
    (status,) = waiting.jobs()
    assert status.request.export == Export(folder=str(tmp_path / "out"))
    assert status.request.recipe.key == keys["dropped"]
    assert status.label.startswith("Export ")


def test_a_full_folder_is_refused_on_the_page(open_page, keys, waiting, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    at = opened(open_page, keys, tmp_path / "out")
    assert "not empty" in at.error[0].value
    assert not [button for button in at.button if button.label == "Export and check"]


@pytest.mark.parametrize("state", ["done", "failed"])
def test_the_checks_of_the_newest_export_are_shown(state, open_page, keys, waiting, tmp_path):
    click(opened(open_page, keys, tmp_path / "out"), "Export and check")
    (job,) = waiting.jobs()
    found = {"path": None, "verified": False, "checks": CHECKS, "notes": []}
    if state == "done":
        found |= {"path": "/there", "verified": True, "notes": NOTES}
        ended(waiting, job.id, state, result={"export": found})
    else:
        ended(waiting, job.id, state, live={"export": found})
    at = open_page("model", model=keys["dropped"])
    tables = [table.value for table in at.dataframe]
    checks = next(table for table in tables if "check" in table)
    assert list(checks[""]) == ["✓ passed", "✗ failed"]
    assert list(checks["found"]) == ["missing 0", "0.5 apart"]
    assert any("program" in table for table in tables) == (state == "done")
    if state == "done":
        assert "Exported to `/there`" in at.success[0].value
    else:
        assert "failed its check 'logits'" in at.error[0].value


def test_a_folder_is_suggested_where_nothing_lies(open_page, keys, tmp_path):
    def suggested() -> str:
        at = open_page("model", model=keys["dropped"])
        assert not at.error
        return next(box for box in at.text_input if box.label == "Folder").value

    first = suggested()
    assert first == str(tmp_path / "exports" / keys["dropped"][:11])
    Path(first).mkdir(parents=True)
    assert suggested() == f"{first}-2"
