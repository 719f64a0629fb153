"""The pages Sparsify and Compensate: recipes that they start, walks that they draw, their help."""

import json
import re
from typing import get_args

import pytest

from laco import Compensate, Finetune, Prune, Recipe, Request, SparseGPT, Structured, Wanda
from laco.disk import write_json
from laco.presets import presets
from laco.steps.sparsity import Method
from laco.ui import methods, session
from laco.ui.session import MEASURED
from tests.pages import prepared
from tests.pages.test_pages import click, words


def alts(at) -> str:
    """The text alternatives of all charts."""
    charts = at.get("plotly_chart")
    found = [chart.proto.alt for chart in charts]
    assert all(found), "a chart without a text alternative"
    return "\n".join(found)


def asked(waiting) -> tuple:
    """The steps of the job sent last."""
    return waiting.jobs()[0].request.recipe.steps


@pytest.fixture
def sparsify(open_page, keys, model):
    return open_page("sparsify", model=str(model))


@pytest.fixture
def compensate(open_page, keys):
    return open_page("compensate", model=keys["pruned"])


def test_sparsify_starts_wanda_at_half_by_default(sparsify, waiting):
    click(sparsify, "Start")
    (job,) = waiting.jobs()
    assert job.request.recipe.steps == (Prune(),)
    assert job.request.evaluations == MEASURED


def test_method_level_and_compensation_go_into_the_recipe(sparsify, waiting):
    sparsify.segmented_control(key="prune..method").set_value("SparseGPT").run()
    sparsify.slider(key="prune..method.SparseGPT.sparsity").set_value(70).run()
    sparsify.toggle(key="prune..compensation").set_value(True).run()
    shown = json.loads(sparsify.code[0].value)
    assert shown["steps"][0]["method"]["sparsity"] == 0.7
    click(sparsify, "Start")
    step = Prune(method=SparseGPT(sparsity=0.7), compensation=Compensate())
    assert asked(waiting) == (step,)


def test_recipe_that_is_shown_can_be_read_back(sparsify):
    sparsify.segmented_control(key="prune..method").set_value("Structured").run()
    sparsify.toggle(key="prune..compensation").set_value(True).run()
    shown = Recipe.model_validate_json(sparsify.code[0].value)
    assert shown.steps == (Prune(method=Structured(), compensation=Compensate()),)


def test_mode_paper_brings_the_papers_settings_along(sparsify, waiting):
    sparsify.toggle(key="prune..compensation").set_value(True).run()
    sparsify.selectbox(key="prune..compensation.on.mode").set_value("paper").run()
    click(sparsify, "Start")
    assert asked(waiting) == (Prune(compensation=Compensate(mode="paper")),)


@pytest.mark.parametrize("name", ["acl-wanda-70", "acl-flap-20", "sparsegpt-2-4"])
def test_preset_is_started_as_it_stands(name, open_page, keys, waiting, model):
    at = open_page("sparsify", model=str(model), preset=presets()[name].title)
    assert presets()[name].note in [info.value for info in at.info]
    click(at, "Start")
    assert asked(waiting) == presets()[name].steps


def test_presets_are_offered_on_the_page_of_their_step(open_page, keys, model):
    offered = {
        page: open_page(page, model=str(model)).selectbox(key="preset").options
        for page in ("collapse", "sparsify")
    }
    assert presets()["sleb"].title in offered["collapse"]
    assert presets()["wanda-50"].title in offered["sparsify"]
    assert len(offered["collapse"]) + len(offered["sparsify"]) == len(presets()) + 1


def test_sparsify_says_what_zeros_do_not_save(sparsify):
    inside = 30 * (4 * 16 * 16 + 3 * 16 * 32)
    told = words(sparsify)
    assert f"About {inside / 2:,.0f} of the {inside:,} weights in the layers become zero." in told
    assert "Bytes stay" in told
    assert "Time stays too" in told
    key = "prune..method.Wanda.pattern"
    sparsify.text_input(key=key).set_value("2:4").run()
    assert "NVIDIA's sparse cores take." in words(sparsify)
    sparsify.segmented_control(key="prune..method").set_value("Structured").run()
    assert "Narrower layers save bytes, memory and time in any runtime" in words(sparsify)


def test_pattern_and_level_that_disagree_give_a_sentence(sparsify):
    sparsify.slider(key="prune..method.Wanda.sparsity").set_value(70).run()
    sparsify.text_input(key="prune..method.Wanda.pattern").set_value("2:4").run()
    assert "Pattern 2:4 zeroes 0.5" in sparsify.error[0].value
    assert "Start" not in [button.label for button in sparsify.button]


def test_finished_pruning_is_shown_with_its_curves_and_its_table(sparsify):
    metrics = {metric.label: metric.value for metric in sparsify.metric}
    assert metrics["Zeros in the layers"] == "50.0 %"
    assert "Layer 3: Damping was raised to 0.1." in words(sparsify)
    told = alts(sparsify)
    assert "After all 30 layers the relative error is" in told
    assert "Layers got 40 to 60 %." in told
    tables = [frame.value for frame in sparsify.dataframe]
    assert list(tables[0].columns) == ["stands for layer", "error", "CKA", "zeros", "seconds"]
    assert len(tables[0]) == prepared.LAYERS


def test_allocation_by_sensitivity_shows_the_curves_of_a_finished_run(open_page, keys, model):
    at = open_page("sparsify", model=str(model))
    assert "Wanda 50 % by sensitivity:" not in words(at)
    at.selectbox(key="prune..allocation").set_value("sensitivity").run()
    assert "As measured for my-model, Wanda 50 % by sensitivity:" in words(at)
    assert alts(at).count("Layers got 40 to 60 %.") == 4
    at = open_page("sparsify", model=keys["dropped"])
    at.selectbox(key="prune..allocation").set_value("sensitivity").run()
    assert "the curves are drawn here afterwards" in words(at), "another model's curves"


def test_compensate_asks_for_a_result_and_takes_it(open_page, keys, waiting, model):
    at = open_page("compensate", model=str(model))
    assert "Choose the smaller model" in at.info[0].value
    at.selectbox[0].set_value(keys["searched"]).run()
    assert not at.exception
    assert at.query_params["model"] in (keys["searched"], [keys["searched"]])
    click(at, "Start")
    assert asked(waiting)[-1] == Compensate()
    assert len(asked(waiting)) == 2


def test_student_in_the_address_is_compensated(compensate, keys, waiting):
    click(compensate, "Start")
    assert asked(waiting) == (Prune(allocation="sensitivity"), Compensate())


def test_mode_and_budget_go_into_the_recipe(compensate, waiting):
    compensate.selectbox(key="compensate.mode").set_value("paper").run()
    compensate.number_input(key="compensate.paper.calibration.windows").set_value(256).run()
    assert "32,768 tokens of bundled:wikipedia@calibration." in words(compensate)
    click(compensate, "Start")
    step = asked(waiting)[-1]
    assert (step.mode, step.epochs, step.batch_tokens) == ("paper", 10, 128)
    assert (step.calibration.windows, step.calibration.length) == (256, 128)


def test_lora_is_the_other_way(compensate, waiting):
    compensate.segmented_control(key="how").set_value("LoRA on the whole model").run()
    click(compensate, "Start")
    assert asked(waiting)[-1] == Finetune()


def test_compensate_says_what_it_takes_before_it_starts(compensate):
    told = words(compensate)
    assert re.search(r"Expected: about [\d.]+ MB of memory and ", told)
    assert "on this machine's processor" in told


def test_finished_compensation_shows_before_and_after(compensate, keys):
    key = next(box.key for box in compensate.selectbox if box.key == "result")
    compensate.selectbox(key=key).set_value(keys["compensated"]).run()
    assert not compensate.exception
    told = alts(compensate)
    last = 0.002 * 1.2**30
    assert f"{last:.3g} as it came" in told
    assert f"{last / 4:.3g} compensated" in told
    assert "closed form in 1, gradient in 29" in told
    assert "in 30 of 30 layers the last is below the first" in told
    columns = set(compensate.dataframe[0].value.columns)
    assert {"error as it came", "error", "CKA as it came", "CKA", "kept"} <= columns


def test_finished_lora_shows_the_originals_loss(compensate, keys):
    compensate.selectbox(key="result").set_value(keys["tuned"]).run()
    assert "epoch 1 of 2 was kept. The original's is 2.8000. No zero was filled." in alts(
        compensate
    )
    assert list(compensate.dataframe[0].value["held-out text"]) == [3.4, 3.05, 3.1]


@pytest.mark.parametrize("page", ["sparsify", "compensate"])
def test_walk_at_work_fills_in_from_its_live_results(page, open_page, keys, waiting):
    recipe = Recipe.model_validate_json(
        json.dumps({"model": {"path": "org/x"}, "steps": [{"kind": "compensate"}]})
    )
    job = waiting.submit(Request(recipe=recipe), label="A walk")
    rows = prepared.walk("compensate")["layers"]
    path = waiting.status(job).folder / "live.json"
    at = open_page(page, model=keys["pruned"])
    assert "of 30 layers" not in words(at)
    write_json(path, {"layers": rows[:12], "of": 30})
    at.run()
    assert not at.exception
    shown = f"After 12 of 30 layers the relative error is {rows[11]['alone']:.3g} as it came"
    assert shown in words(at)
    assert alts(at).count(shown) == 2
    assert "A walk · queued" in [bar.proto.text for bar in at.main.get("progress")]
    write_json(path, {"layers": rows[:13], "of": 30})
    at.run()
    assert "After 13 of 30 layers" in words(at)


def test_lora_at_work_draws_its_loss_so_far(open_page, keys, waiting):
    recipe = Recipe.model_validate({"model": {"path": "org/x"}, "steps": [{"kind": "finetune"}]})
    job = waiting.submit(Request(recipe=recipe), label="A training")
    known = prepared.training()
    so_far = {name: known[name] for name in ("curve", "held_out_before", "original_held_out")}
    path = waiting.status(job).folder / "live.json"
    write_json(path, {**so_far, "curve": known["curve"][:3], "epochs": []})
    at = open_page("compensate", model=keys["pruned"])
    assert not at.exception
    assert "at step 3; the latest held-out loss is 3.4000" in alts(at)
    write_json(path, {**so_far, "curve": known["curve"][:5], "epochs": known["epochs"][:1]})
    at.run()
    assert "at step 5; the latest held-out loss is 3.0500" in alts(at)


def test_job_that_is_over_is_watched_no_longer(open_page, keys, waiting):
    job = waiting.submit(Request(recipe=Recipe.model_validate({"model": {"path": "org/x"}})))
    rows = prepared.walk("prune")["layers"]
    write_json(waiting.status(job).folder / "live.json", {"layers": rows[:12], "of": 30})
    with session.store().index.transaction() as index:
        index.execute("UPDATE jobs SET state = 'done'")
    assert "After 12 of 30" not in words(open_page("sparsify", model=keys["original"]))


STEPS = [
    *(Prune(method=kind()) for kind in get_args(get_args(Method)[0])),
    *(Prune(method=Structured(importance=name)) for name in ("flap", "taylor", "magnitude")),
    Prune(method=Wanda(pattern="2:4")),
    Prune(allocation="sensitivity", compensation=Compensate(mode="paper")),
    Compensate(),
    Finetune(),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: " ".join(methods.headings(step)))
def test_every_method_on_the_pages_has_its_section(step):
    for heading in methods.headings(step):
        text = methods.section(heading)
        assert len(text) > 100
        assert not text.startswith("#")


def test_help_says_where_a_method_is_from_and_when_to_use_it():
    for heading in ("wanda", "sparsegpt", "flap", "taylor", "mode: laco+", "mode: paper", "LoRA"):
        text = " ".join(methods.section(heading).split())
        assert "*From*" in text
        assert "*Cost*" in text
        assert "*Use it*" in text


def test_section_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match="no section 'cheese'"):
        methods.section("cheese")


def test_help_of_the_chosen_method_is_on_the_page(sparsify):
    assert methods.section("wanda") in [element.value for element in sparsify.markdown]
    sparsify.segmented_control(key="prune..method").set_value("Magnitude").run()
    assert methods.section("magnitude") in [element.value for element in sparsify.markdown]
