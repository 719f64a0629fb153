"""Results as a tree, what is said of them and their end; two of them compared; the Report page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laco import annotations
from laco.access import Person
from laco.evaluations import WeightChange
from laco.jobs import LocalRunner
from laco.lineage import tree
from laco.recipe import Compensate, Recipe
from laco.ui import lineage, person, session, trees
from tests.pages import prepared
from tests.pages.test_pages import click, words

OWNER = "ada@example.org"


def by(at, kind: str, label: str):
    return next(one for one in at.get(kind) if one.label == label)


def table(at):
    return next(one.value for one in at.dataframe if "result" in one.value.columns)


def test_every_result_stands_below_the_one_that_it_was_made_from(open_page, keys):
    at = open_page("results")
    shown = table(at)
    assert next(iter(shown["key"])) == keys["original"][:11]
    rows = dict(zip(shown["key"], shown["result"], strict=True))
    deep = {name: rows[keys[name][:11]].count(trees.INDENT) for name in keys}
    assert deep == {
        "original": 0,
        "pruned": 1,
        "searched": 1,
        "dropped": 1,
        "compensated": 2,
        "tuned": 2,
    }
    assert rows[keys["tuned"][:11]].endswith("└ LoRA r 8")
    numbers = dict(zip(shown["key"], shown["numbers"], strict=True))
    told = numbers[keys["searched"][:11]]
    assert told == "perplexity 27.5 · 27 layers · 123.6 M parameters · 494.3 MB"


def test_a_result_is_chosen_by_its_address_and_led_on_from(open_page, keys):
    at = open_page("results", run=keys["pruned"][:11])
    assert by(at, "selectbox", "Result").value == keys["pruned"]
    links = {one.proto.label: one.proto for one in at.get("page_link")}
    assert {"Map its layers", "Collapse layers", "Sparsify", "Compensate"} <= links.keys()
    assert f"model={keys['pruned'][:11]}" in links["Compensate"].query_string
    runs = f"runs={keys['original'][:11]}&runs={keys['pruned'][:11]}"
    assert runs in links["Compare with those above"].query_string
    assert runs in links["Show it as a report"].query_string
    at = open_page("compensate", model=keys["pruned"][:11])
    assert session.recipe_at(keys["pruned"][:11]).key == keys["pruned"]
    assert not at.error


def test_a_name_a_note_and_tags_are_kept_and_shown(open_page, keys):
    at = open_page("results", run=keys["pruned"])
    by(at, "text_input", "Name").set_value("My half")
    by(at, "text_area", "Note").set_value("for the talk")
    click(at, "Save")
    said = annotations.read(session.store(), keys["pruned"])
    assert (said.name, said.note, said.archived) == ("My half", "for the talk", False)
    assert at.header[0].value == "My half"
    assert "for the talk" in "".join(one.value for one in at.text)
    compare = open_page("compare")
    assert "My half" in table_of(compare).columns
    assert "My half" in by(compare, "multiselect", "Runs").options


def table_of(at):
    return at.dataframe[0].value


def test_archived_results_are_hidden_unless_asked_for(open_page, keys):
    annotations.annotate(session.store(), keys["pruned"], archived=True, tags=["half"])
    shown = table(open_page("results"))
    assert keys["pruned"][:11] not in list(shown["key"])
    assert keys["compensated"][:11] in list(shown["key"]), "what was made from it stays in sight"
    assert keys["pruned"][:11] in list(table(open_page("results", archived="true"))["key"])
    assert keys["pruned"][:11] in list(table(open_page("results", run=keys["pruned"][:11]))["key"])


def test_words_find_results_and_those_above_them(open_page, keys):
    shown = table(open_page("results", find="lora"))
    assert list(shown["key"]) == [keys[n][:11] for n in ("original", "pruned", "tuned")]
    at = open_page("results", find="nothing of the kind")
    assert "No result holds these words" in at.info[0].value


def test_what_goes_with_a_result_is_named_and_goes_once_agreed(open_page, keys):
    at = open_page("results", run=keys["pruned"])
    told = words(at)
    assert "Made from it, and deleted with it (2)" in told
    assert "compensated (laco+)" in told
    assert "LoRA r 8" in told
    button = next(one for one in at.button if one.label == "Delete these 3 results")
    assert button.disabled
    by(at, "checkbox", "Delete these 3 results for good").check().run()
    click(at, "Delete these 3 results")
    left = {run.key for run in session.store().runs()}
    assert left == {keys[name] for name in ("original", "searched", "dropped")}
    assert not at.error


def test_what_a_job_uses_is_not_deleted(open_page, keys, waiting):
    run = session.store().run(keys["pruned"])
    assert run is not None
    waiting.submit(session.Request(recipe=run.recipe.then(Compensate())), "at work")
    at = open_page("results", run=keys["pruned"])
    by(at, "checkbox", "Delete these 3 results for good").check().run()
    click(at, "Delete these 3 results")
    assert "is needed by the job" in at.error[0].value
    assert len(session.store().runs()) == len(keys)


@pytest.mark.parametrize("role", ["viewer", "runner"])
def test_who_does_not_own_a_result_changes_nothing(open_page, keys, monkeypatch, role):
    monkeypatch.setattr(person, "person", lambda: Person(OWNER, role))
    monkeypatch.setattr(lineage, "person", lambda: Person(OWNER, role))
    at = open_page("results", run=keys["pruned"])
    for label in ("Save", "Delete these 3 results"):
        button = next(one for one in at.button if one.label == label)
        assert button.disabled
        assert button.help
    monkeypatch.setattr(annotations, "owner_of", lambda *_: OWNER)
    at = open_page("results", run=keys["pruned"])
    button = next(one for one in at.button if one.label == "Save")
    assert button.disabled == (role == "viewer")


def test_an_export_stands_below_its_result(keys, tmp_path: Path):
    exported = annotations.Exported(folder=str(tmp_path), created=1.0)
    annotations.add_export(session.store(), keys["pruned"], exported)
    gone = annotations.Exported(folder=str(tmp_path / "gone"), created=1.0)
    annotations.add_export(session.store(), keys["pruned"], gone)
    nodes = tree(session.store().runs(metrics=False), annotations.read_all(session.store()))
    lines = lineage.lines_of(nodes)
    place = next(n for n, line in enumerate(lines) if line.kind == "export")
    assert lines[place - 1].key == lines[place].key == keys["pruned"]
    assert lines[place].depth == lines[place - 1].depth + 1
    assert lines[place].numbers == ""
    assert lines[place + 1].numbers == "no longer there"


def test_the_figure_has_a_mark_for_each_line_and_rings_the_chosen_one(keys):
    nodes = tree(session.store().runs(metrics=False))
    lines = lineage.lines_of(nodes)
    drawn: list[Any] = list(trees.figure(lines, keys["tuned"]).data)  # pyright knows no traces
    marks = [trace for trace in drawn if trace.customdata is not None]
    assert sorted(key for trace in marks for key in trace.customdata) == sorted(keys.values())
    assert len({trace.marker.symbol for trace in marks}) == len(marks)
    ring = drawn[-1]
    place = next(n for n, line in enumerate(lines) if line.key == keys["tuned"])
    assert (list(ring.x), list(ring.y)) == ([2], [place])
    assert "Tree of 6 results" in trees.told(lines)


def test_a_store_of_500_results_is_shown_in_parts(open_page, model, tmp_path):
    prepared.crowd(tmp_path / "store", model, 500, answered=0)
    at = open_page("results")
    assert len(table(at)) == lineage.MOST_LINES
    assert "500 results, 60 at a time." in words(at)


# --- two runs ------------------------------------------------------------------------------------


def test_two_runs_are_set_side_by_side_in_layers_and_configs(open_page, keys):
    query = {"runs": [keys["original"], keys["searched"]], "base": keys["original"]}
    at = open_page("compare", **query, pair="Layers and widths")
    told = words(at)
    assert "lacks layers 13, 14, 21 of the original" in told
    sizes = next(one.value for one in at.dataframe if "of the model" in one.value.columns)
    row = sizes.set_index("of the model").loc["layers"]
    assert list(row) == ["30", "27", "≠"]
    at = open_page("compare", **query, pair="Configs")
    fields = next(one.value for one in at.dataframe if "field" in one.value.columns)
    assert len(fields)


def test_weights_are_compared_by_a_job_and_shown(open_page, keys, waiting: LocalRunner):
    query = {"runs": [keys["original"], keys["pruned"]], "base": keys["original"]}
    query["pair"] = "Weights"
    at = open_page("compare", **query)
    click(at, "Compare the weights")
    (job,) = waiting.jobs()
    assert job.request.analyses == (WeightChange(),)
    assert job.request.recipe.key == keys["pruned"]
    rows = [
        {"layer": layer, "place": layer, "other_place": layer, "change": 0.01 * layer}
        | {"tensors": {"mlp.down_proj.weight": 0.02 * layer}, "unlike": []}
        for layer in range(prepared.LAYERS)
    ]
    document = {"layers": rows, "rest": {"change": 0.0, "tensors": {}, "unlike": []}}
    session.store().add_analysis(keys["pruned"], WeightChange(), document)
    at = open_page("compare", **query)
    assert "From 0.0 % in layer 0 to 29.0 % in layer 29" in words(at)
    assert not [one for one in at.button if one.label == "Compare the weights"]


def test_a_run_that_is_not_measured_is_compared_where_the_address_names_it(open_page, keys):
    run = session.store().run(keys["dropped"])
    assert run is not None
    bare = Recipe(model=run.recipe.model, steps=(*run.recipe.steps, *run.recipe.steps))
    session.store().save(
        bare.key, bare, [], lambda place: prepared.model_folder(place, 26) and None
    )
    at = open_page("compare", runs=[keys["original"], bare.key[:11]])
    assert by(at, "multiselect", "Runs").value == [keys["original"], bare.key]
    assert bare.key not in open_page("compare").multiselect[0].value


# --- report --------------------------------------------------------------------------------------


def test_the_report_page_tells_the_story_and_starts_nothing(open_page, keys, monkeypatch):
    annotations.annotate(session.store(), keys["compensated"], name="Ours", note="my remark")
    at = open_page(
        "report", runs=[keys["original"][:11], keys["compensated"][:11]], base=keys["original"][:11]
    )
    assert not at.button, "nothing on it starts or changes anything"
    assert [one.value for one in at.header] == ["Numbers", "my-model", "Ours"]
    told = words(at)
    assert "Wanda 50 %" in told
    assert "After all 30 layers the relative error is" in told
    assert "my remark" in "".join(one.value for one in at.text)
    assert "Ours" in table_of(at).columns
    address = next(one.value for one in at.code if "runs=" in one.value)
    assert f"/report?runs={keys['original'][:11]}&runs={keys['compensated'][:11]}" in address
    assert [one.proto.label for one in at.get("download_button")] == ["Download as one HTML file"]


def test_the_report_of_nothing_says_what_to_do(open_page):
    assert "Run the demo" in open_page("report").info[0].value
