"""The pages over what the engine really leaves, on a tiny model: reports and live results."""

import pytest

from laco import (
    Compensate,
    Finetune,
    Magnitude,
    ModelRef,
    Prune,
    Recipe,
    Request,
    Structured,
    engine,
)
from laco.context import Context
from laco.jobs import InlineRunner
from laco.recipe import Calibration
from laco.ui import session
from tests import tiny
from tests.pages.test_pages import words
from tests.pages.test_recovery import alts

LINES = [f"The {n} small birds sat in the {n % 7} old trees and sang. " * 3 for n in range(200)]


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(LINES))
    return Calibration(source=f"file:{path}", windows=4, length=16)


@pytest.fixture
def original(tmp_path):
    return Recipe(model=ModelRef(path=str(tiny.save(tiny.redundant(), tmp_path / "tiny"))))


STEPS = {
    "sensitivity": (
        lambda text: [Prune(method=Magnitude(), allocation="sensitivity", calibration=text)],
        ("Zeros in the layers", "Layers got"),
    ),
    "compensated": (
        lambda text: [
            Prune(calibration=text),
            Compensate(calibration=text, held_out=2, epochs=2),
        ],
        ("as it came", "the last is below the first"),
    ),
    "one walk": (
        lambda text: [
            Prune(compensation=Compensate(calibration=text, held_out=2, epochs=1)),
        ],
        ("pruned", "compensated"),
    ),
    "narrower": (
        lambda text: [Prune(method=Structured(channels=0.5, multiple=4), calibration=text)],
        ("intermediate_size", "After all"),
    ),
    "lora": (
        lambda text: [
            Prune(calibration=text),
            Finetune(calibration=text, held_out=2, epochs=1, batch_tokens=32),
        ],
        ("The original's is", "No zero was filled"),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_real_reports_are_drawn(name, original, calibration, open_page):
    make, expected = STEPS[name]
    recipe = original.then(*make(calibration))
    engine.run(Request(recipe=recipe), session.store(), Context())
    page = "sparsify" if len(recipe.steps) == 1 else "compensate"
    at = open_page(page, model=recipe.model.path)
    shown = words(at) + alts(at) + "".join(metric.label for metric in at.metric)
    assert all(part in shown for part in expected), shown
    assert not at.error


def test_real_walk_publishes_its_rows(original, calibration):
    runner = InlineRunner(session.store(), engine.run)
    step = Prune(method=Magnitude(), calibration=calibration)
    status = runner.status(runner.submit(Request(recipe=original.then(step))))
    assert status.state == "done", status.error
    live = status.live
    assert live is not None
    assert live["of"] == len(live["layers"])
    assert {"layer", "error", "cka", "zeros", "weights", "seconds"} <= set(live["layers"][0])
