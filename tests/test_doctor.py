"""What `laco doctor` finds missing: what that means, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from laco import hub
from laco.cli import doctor


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the speed of the machine takes seconds."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else name)


def test_a_hub_out_of_reach_says_what_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "answers", lambda: False)
    (lack,) = [words for words in doctor.examine(tmp_path)["missing"] if "hub" in words]
    for part in ("cannot be fetched", "The bundled model and texts", "HTTPS_PROXY", "HF_ENDPOINT"):
        assert part in lack
    monkeypatch.setattr(hub, "answers", lambda: True)
    assert not [words for words in doctor.examine(tmp_path)["missing"] if "hub" in words]


def test_a_machine_without_accelerator_says_what_that_means():
    (lack,) = doctor._accelerator([{"name": "cpu"}])
    assert "everything runs on the processor" in lack
    assert not doctor._accelerator([{"name": "cuda:0"}, {"name": "cpu"}])


def test_a_store_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.access", lambda place, how: False)
    (problem,) = doctor._room(tmp_path)
    assert "cannot be written to; give another --store" in problem
