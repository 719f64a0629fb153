"""The pages through AppTest, from `app.py`: what is shown, and what a click asks for."""

import json
from pathlib import Path

import pytest

from laco import devices, shipped
from laco.demo import demo_requests
from laco.evaluations import ParameterSimilarity, Request, Similarity, WhatIf
from laco.queue import Queue
from laco.recipe import Collapse, Merge, ModelRef, Recipe
from laco.ui import frame, session, tour
from laco.ui.session import MEASURED
from tests.pages import prepared

PAGES = tuple(page.name for page in frame.PAGES)
NONSENSE = (
    {
        "model": "k1-",
        "range": ["12", "6"],
        "pick": "x",
        "span": "ten",
        "runs": "k1-nothing",
        "base": "k1-nothing",
        "job": "nothing",
        "tab": "nothing",
        "how": "nothing",
        "preset": "nothing",
        "measure": "nothing",
        "diff": "nothing",
        "quality": "nothing",
        "cost": "nothing",
        "run": "nothing",
        "task": "nothing",
        "change": "nothing",
        "find": "nothing",
        "what": "nothing",
        "tasks": "<no such task>",
        "prompt": "",
        "tokens": "many",
        "text": "nothing",
    },
    {"model": "no such/model at all", "range": ["6", "999"], "span": "6:999"},
)


def words(at) -> str:
    """All text that a page shows."""
    kinds = ("title", "header", "markdown", "caption", "info", "warning", "error", "success")
    return "\n".join(element.value for kind in kinds for element in at.get(kind))


def click(at, label: str):
    """Press the button of that name."""
    next(button for button in at.button if button.label == label).click()
    at.run()
    assert not at.exception, [error.value for error in at.exception]
    return at


@pytest.mark.parametrize("page", PAGES)
def test_no_page_raises_on_an_empty_store(page, open_page):
    at = open_page(page)
    assert at.title[0].value
    assert not at.error


@pytest.mark.parametrize("page", PAGES)
def test_no_page_raises_on_a_filled_store(page, open_page, keys, model):
    assert not open_page(page, model=str(model)).error


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("query", NONSENSE, ids=("unreadable", "out of bounds"))
def test_bad_addresses_do_no_harm(page, query, open_page, keys):
    open_page(page, **query)


@pytest.mark.parametrize("page", ["similarity", "collapse"])
def test_ranges_past_the_end_of_a_good_model_do_no_harm(page, open_page, keys, model):
    open_page(page, model=str(model), range=["6", "999"], pick=["40", "50"], span="-1:999")


@pytest.mark.parametrize(
    ("page", "hint"),
    [
        ("home", "Run the demo"),
        ("sparsify", "Start under Set up"),
        ("compensate", "Choose the smaller model"),
        ("compare", "Run the demo"),
        ("evaluate", "Run the demo"),
        ("jobs", "Run the demo"),
    ],
)
def test_empty_pages_say_what_to_do_next(page, hint, open_page):
    assert hint in "".join(info.value for info in open_page(page).info)


def test_model_without_a_map_is_offered_one(open_page, model):
    at = open_page("similarity", model=str(model))
    assert "Compute it" in at.info[0].value
    assert next(b for b in at.button if b.label == "Compute the map")


def test_bundled_model_has_a_map_before_anything_is_computed(open_page, waiting):
    at = open_page("similarity")
    assert "came with laco" in words(at)
    assert "What if this range alone becomes one layer (drop): KL" in words(at)
    click(at, "Recompute the map here")
    (job,) = waiting.jobs()
    assert job.request.analyses == (Similarity(),)
    assert job.request.recipe == Recipe(model=ModelRef(path=session.BUNDLED))


def test_a_map_made_here_goes_before_the_one_that_came_with_laco(open_page):
    original = session.pinned(session.UNTOUCHED)
    session.store().add_model(original.key, original)
    session.store().add_analysis(original.key, Similarity(), prepared.similarity())
    at = open_page("similarity")
    assert "came with laco" not in words(at)
    assert "4,080 tokens" in words(at)


def test_shipped_maps_are_of_the_bundled_model_as_it_is(open_page):
    key = session.pinned(session.UNTOUCHED).key
    for spec in (Similarity(), WhatIf()):
        found = shipped.find(key, spec.kind)
        assert found is not None
        assert found[0] == spec
    assert shipped.find("k1-else", "similarity") is None


@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_where_one_is_and_what_comes_next(page):
    about = next(each for each in frame.PAGES if each.name == page)
    assert about.here.endswith(".")
    assert about.then in PAGES


def test_the_story_leads_through_its_five_steps():
    by_name = {each.name: each for each in frame.PAGES}
    name, steps = "home", []
    while len(steps) < 5:
        name = by_name[name].then
        steps.append(by_name[name].here)
    assert [words.partition(":")[0] for words in steps] == [f"Step {n} of 5" for n in range(1, 6)]
    assert list(tour.STOPS) == ["home", "model", "similarity", "collapse", "compensate", "compare"]


def test_tour_is_offered_once_and_ends_for_good(open_page):
    at = click(open_page("home"), "Take the tour")
    assert "Tour, stop 1 of 6" in words(at)
    at.switch_page("pages/model.py").run()
    assert "Tour, stop 2 of 6" in words(at)
    click(at, "End the tour")
    assert "Tour, stop" not in words(at)
    again = open_page("home")
    assert "New here?" not in words(again)
    click(again, "Take the tour")
    assert "Tour, stop 1 of 6" in words(again)


def test_the_frame_names_the_store_and_what_runs(open_page, waiting, tmp_path):
    at = open_page("home")
    shown = [element.value for element in (*at.sidebar.markdown, *at.sidebar.caption)]
    assert f"`{tmp_path / 'store'}`" in shown
    assert "Nothing is running." in shown
    waiting.submit(demo_requests()[0], label="A job")
    at.run()
    assert "Nothing is running." not in [element.value for element in at.sidebar.caption]


@pytest.mark.parametrize("page", ["compensate", "compare"])
def test_a_page_that_ends_early_keeps_its_sidebar(page, open_page):
    at = open_page(page)
    assert "Nothing is running." in [element.value for element in at.sidebar.caption]


def test_demo_button_sends_the_demo_once(open_page, waiting):
    at = click(open_page("home"), "Run the demo")
    sent = [status.request for status in reversed(waiting.jobs())]
    assert sent == demo_requests()
    assert next(b for b in at.button if b.label == "Run the demo").disabled


def test_home_lists_recent_runs_newest_first(open_page, keys):
    table = open_page("home").dataframe[0].value
    order = ("dropped", "searched", "tuned", "compensated", "pruned", "original")
    assert list(table["key"]) == [keys[name][:11] for name in order]
    assert list(table["perplexity"]) == ["20.1", "27.5", "25", "23.5", "31", "19.5"]


def test_chosen_folder_is_described_and_goes_into_the_address(open_page, model):
    at = open_page("model")
    at.segmented_control(key="source").set_value("Folder or GGUF file").run()
    at.text_input[0].set_value(str(model))
    click(at, "Use this model")
    assert at.query_params["model"] in (str(model), [str(model)])
    assert str(model) in words(at)
    assert not at.error


def test_folder_without_a_config_gives_one_sentence(open_page, tmp_path):
    at = open_page("model", model=str(tmp_path))
    (error,) = at.error
    assert str(tmp_path) in error.value
    assert "\n" not in error.value


def test_earlier_result_is_taken_with_its_steps(open_page, keys, model):
    at = open_page("similarity", model=keys["searched"])
    click(at, "Compare the parameters")
    (job,) = Queue(session.store()).live()
    asked = Request.model_validate_json(job["request"])
    assert asked.recipe.steps == (Collapse(target_layers=prepared.LAYERS - 3),)
    assert asked.analyses == (ParameterSimilarity(),)


def test_similarity_asks_for_the_map_it_lacks(open_page, waiting, model):
    at = open_page("similarity", model=str(model))
    at.selectbox(key="similarity.tokens").set_value("all").run()
    click(at, "Compute the map")
    (job,) = waiting.jobs()
    assert job.request == Request(
        recipe=Recipe(model=ModelRef(path=str(model))), analyses=(Similarity(tokens="all"),)
    )


def test_map_on_its_way_shows_a_bar_and_a_failure_its_sentence(open_page, waiting, model):
    at = click(open_page("similarity", model=str(model)), "Compute the map")
    bar, text = at.main.get("progress")[0], "Similarity map · queued"
    assert bar.proto.text == text
    with session.store().index.transaction() as index:
        index.execute("UPDATE jobs SET state = 'failed', error = 'The text is too short.'")
    at.run()
    assert at.error[0].value == "Similarity map failed: The text is too short."


def test_same_request_is_not_sent_twice(open_page, waiting, model):
    for _ in range(2):
        click(open_page("similarity", model=str(model)), "Compute the map")
    assert len(waiting.jobs()) == 1


def test_map_with_other_settings_is_shown_with_a_warning(open_page, keys, model):
    at = open_page("similarity", model=str(model))
    assert not at.warning
    at.number_input(key="similarity.shards").set_value(2).run()
    assert "other settings: the defaults" in at.warning[0].value


def test_range_in_the_address_is_told_in_words(open_page, keys, model):
    at = open_page("similarity", model=str(model), range=["6", "10"])
    assert at.slider(key="range").value == (6, 10)
    assert "Layers 6–9 become layer 6; layers 7, 8, 9 go." in words(at)
    assert "Stays: layers 0–6 and 10–29." in words(at)
    assert "What if this range alone becomes one layer (drop): KL 1.36 nats" in words(at)


def test_range_is_cut_to_a_smaller_model(open_page, keys, model):
    at = open_page("similarity", model=str(model), range=["6", "30"])
    at.query_params["model"] = keys["searched"]
    at.run()
    assert not at.exception
    assert at.slider(key="range").value[1] <= prepared.LAYERS - 3


def test_range_of_one_layer_is_refused_in_words(open_page, keys, model):
    at = open_page("similarity", model=str(model), range=["6", "7"])
    assert "two layers at least" in words(at)
    assert "Collapse this range" not in [button.label for button in at.button]


def test_span_in_the_address_is_carried_over_to_collapse(open_page, keys, waiting, model):
    at = open_page("collapse", model=str(model), span="6:10")
    assert at.text_input(key="merge.spans").value == "6:10"
    assert "layers 7, 8, 9 go" in words(at)
    click(at, "Start")
    (job,) = waiting.jobs()
    assert job.request.recipe.steps == (Merge(spans=((6, 10),)),)
    assert job.request.evaluations == MEASURED


def test_ranges_are_added_one_by_one(open_page, keys, model):
    at = open_page("collapse", model=str(model), pick=["6", "10"])
    click(at, "Add this range")
    at.slider(key="pick").set_value((20, 22)).run()
    click(at, "Add this range")
    click(at, "Add this range")
    assert at.text_input(key="merge.spans").value == "6:10, 20:22"


def test_span_past_the_end_gives_a_sentence_and_no_start(open_page, keys, model):
    at = open_page("collapse", model=str(model), span="6:99")
    assert "ends past the model's 30 layers" in at.error[0].value
    assert not [button for button in at.button if button.key == "hand.start"]


def test_search_asks_for_the_original_too_when_it_is_not_measured(open_page, waiting, model):
    at = open_page("collapse", model=str(model))
    at.button(key="search.start").click()
    at.run()
    asked = [status.request.recipe.steps for status in reversed(waiting.jobs())]
    assert asked == [(), (Collapse(target_share=0.75),)]


def test_preset_fills_the_form(open_page, keys, waiting, model):
    at = open_page(
        "collapse", model=str(model), preset="ShortGPT: the layers of least influence go"
    )
    assert at.selectbox(key="search.shortgpt.order").value == "influence"
    at.button(key="search.start").click()
    at.run()
    (job,) = waiting.jobs()
    assert job.request.recipe.steps == (Collapse(order="influence", target_share=0.75),)


def test_what_a_page_starts_is_shown_as_a_recipe(open_page, keys, model):
    at = open_page("collapse", model=str(model), span="6:10")
    shown = json.loads(at.code[0].value)
    assert shown["steps"] == [{"kind": "merge", "spans": [[6, 10]]}]
    assert at.code[1].value.startswith("laco run recipe.json")


def test_what_if_map_is_asked_for(open_page, waiting, model):
    click(open_page("collapse", model=str(model)), "Compute the what-if map")
    assert waiting.jobs()[0].request.analyses == (WhatIf(),)


def test_plan_of_a_search_can_be_run_as_it_stands(open_page, keys, waiting, model):
    at = open_page("collapse", model=str(model))
    assert "Went: layers 13, 14, 21." in words(at)
    click(at, "Run this edited plan")
    assert waiting.jobs()[0].request.recipe.steps == (Merge(spans=((12, 15), (20, 22))),)


def test_comparison_opens_from_its_address(open_page, keys):
    at = open_page(
        "compare", runs=[keys["searched"][:11], keys["dropped"]], base=keys["dropped"][:11]
    )
    assert at.multiselect[0].value == [keys["searched"], keys["dropped"]]
    assert at.selectbox[0].value == keys["dropped"]


def test_comparison_shows_signed_deltas_and_badges_unlike_settings(open_page, keys):
    at = open_page("compare")
    table = at.dataframe[0].value
    name = "perplexity[bundled:wikipedia@heldout]"
    by_run = dict(zip(table.columns, table.loc[name], strict=True))
    assert by_run["my-model"] == "19.5"
    assert by_run["my-model, collapse best-first (KL, drop) to 27 layers"] == "27.5 (+41.0 %) ▼"
    assert "†" in by_run["my-model, drop 2 layers (3, 4)"]
    assert "▲" in table.loc["parameters", "my-model, drop 2 layers (3, 4)"]
    assert any("windows 16, baseline 32" in element.value for element in at.markdown)


def test_comparison_of_no_runs_asks_for_some(open_page, keys):
    at = open_page("compare")
    at.multiselect[0].set_value([]).run()
    assert not at.exception
    assert "Choose runs" in at.info[0].value


def test_job_is_cancelled_and_tried_again(open_page, waiting):
    job = waiting.submit(demo_requests()[0], label="A job")
    at = open_page("jobs", job=job)
    click(at, "Cancel")
    assert waiting.status(job).state == "cancelled"
    click(at, "Retry")
    states = sorted(status.state for status in waiting.jobs())
    assert states == ["cancelled", "queued"]


def test_failed_job_shows_one_sentence_and_hides_the_trace(open_page, waiting):
    job = waiting.submit(demo_requests()[0], label="A job")
    with session.store().index.transaction() as index:
        index.execute(
            "UPDATE jobs SET state = 'failed', error = ? WHERE id = ?",
            ("The text is too short.\nTraceback: line 1", job),
        )
    at = open_page("jobs", job=job)
    assert at.error[0].value == "A job failed: The text is too short."
    assert "line 1" in at.expander[0].code[0].value


def test_jobs_page_tells_attempts_device_and_cause(open_page, waiting):
    job = waiting.submit(demo_requests()[0], label="A job")
    with session.store().index.transaction() as index:
        index.execute(
            "UPDATE jobs SET state = 'failed', attempt = 3, device = 'cpu', memory = 2e9,"
            " error = ? WHERE id = ?",
            ("The worker was killed for memory, in attempt 3 of 3.\nThe end of its log:\nx", job),
        )
    at = open_page("jobs", job=job)
    table = at.dataframe[0].value
    assert list(table["attempt"]) == ["3 of 3"]
    assert list(table["device"]) == ["cpu"]
    assert table["message"][0] == "The worker was killed for memory, in attempt 3 of 3."
    assert at.error[0].value.endswith("killed for memory, in attempt 3 of 3.")
    said = [caption.value for caption in at.caption]
    assert any("Attempt 3 of 3, on cpu, expected to take 2.0 GB" in words for words in said)


def test_devices_that_take_jobs_are_chosen_on_the_jobs_page(open_page, waiting, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("LACO_SLOTS", raising=False)
    waiting.submit(demo_requests()[0], label="A job")
    at = open_page("jobs")
    at.multiselect[0].set_value(["1"])
    at.number_input[0].set_value(2)
    click(at, "Choose")
    assert not at.exception
    assert devices.slots(session.store().folder) == ["1", "1"]


def test_pages_are_short():
    for page in Path(__file__).parents[2].joinpath("pages").glob("*.py"):
        assert len(page.read_text().splitlines()) <= 110, page
