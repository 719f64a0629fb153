"""Specs -> widgets -> specs, driven without a browser."""

import json

import pytest
from streamlit.testing.v1 import AppTest

from laco.evaluations import Perplexity, Similarity, WhatIf
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Magnitude,
    Merge,
    Prune,
    Recipe,
    SparseGPT,
    Spec,
    Structured,
    Wanda,
    parse_recipe,
)
from laco.ui.fields import leading
from laco.ui.words import recipe_text

SPECS = [
    Collapse(),
    Collapse(order="top_down", interval=3, threshold=0.7, merge="telescoped"),
    Collapse(order="influence", target_share=0.8, lowest=2, highest=20),
    Collapse(calibration=Calibration(source="file:a.txt", windows=3, unit="sentence", seed=7)),
    Merge(spans=((6, 10), (20, 22)), merge="mean", parameters="projections"),
    Drop(layers=(7, 8, 12)),
    Prune(method=Magnitude(sparsity=0.35), allocation="sensitivity"),
    Prune(method=SparseGPT(pattern="2:4", damping=0.1), calibration=Calibration(windows=3)),
    Prune(method=Structured(importance="taylor", channels=0.3, groups=0.25)),
    Prune(compensation=Compensate(mode="paper", epochs=3)),
    Compensate(alpha=0.5, epochs=0),
    Compensate(mode="paper"),
    Finetune(rank=4, loss="kl", keep_zeros=False),
    Similarity(tokens="last", shards=2),
    WhatIf(longest=4, merge="rdsc"),
    Perplexity(stride=128, windows=None),
]


def show(spec_class, start):  # runs as a script of its own, so it imports what it needs
    import streamlit as st

    from laco.ui.forms import spec_form

    st.session_state["out"] = spec_form(spec_class, "form", start=start)


def describe(spec: Spec) -> str:
    return f"{type(spec).__name__} {spec.model_dump(exclude_defaults=True)}"


def form(spec_class: type[Spec], start: Spec | None = None) -> AppTest:
    at = AppTest.from_function(show, kwargs={"spec_class": spec_class, "start": start}).run()
    assert not at.exception
    return at


@pytest.mark.parametrize("spec", SPECS, ids=describe)
def test_form_gives_back_the_spec_it_starts_from(spec):
    assert form(type(spec), spec).session_state["out"] == spec


@pytest.mark.parametrize(
    "spec_class",
    [Collapse, Prune, Compensate, Finetune, Similarity, WhatIf, Perplexity, Calibration],
)
def test_untouched_form_gives_the_defaults(spec_class):
    assert form(spec_class).session_state["out"] == spec_class()


STEPS = [
    *(spec for spec in SPECS if isinstance(spec, Collapse | Merge | Drop | Prune | Compensate)),
    Compensate(mode="paper", epochs=4),
    Collapse(order="top_down", span=2),
    Collapse(order="influence", target_share=0.75, calibration=Calibration(windows=4)),
    Collapse(order="influence", target_share=0.75),
]


@pytest.mark.parametrize("step", STEPS, ids=describe)
def test_recipe_that_is_shown_reads_back_as_the_same(step):
    recipe = Recipe.model_validate({"model": {"path": "org/x"}, "steps": [step]})
    assert parse_recipe(recipe_text(recipe)) == recipe


def test_recipe_that_is_shown_leaves_out_what_goes_without_saying():
    step = Prune(compensation=Compensate(mode="paper"))
    recipe = Recipe.model_validate({"model": {"path": "org/x"}, "steps": [step]})
    assert json.loads(recipe_text(recipe))["steps"] == [
        {"kind": "prune", "compensation": {"kind": "compensate", "mode": "paper"}}
    ]


def test_bounds_and_help_come_from_the_field():
    span = form(Collapse).number_input(key="form.span")
    assert (span.min, span.max) == (2, 64)
    assert span.help == Collapse.model_fields["span"].description


def test_small_numbers_are_shown_and_raised_as_small_numbers():
    rate = form(Compensate).number_input(key="form.learning_rate")
    assert rate.value == 5e-4
    assert rate.proto.format == "%.4g"
    assert rate.step == 1e-4


def test_nested_spec_is_changed_through_its_own_widgets():
    at = form(Collapse)
    at.number_input(key="form.calibration.windows").set_value(9)
    at.selectbox(key="form.merge").set_value("mean")
    at.run()
    assert at.session_state["out"] == Collapse(merge="mean", calibration=Calibration(windows=9))


def test_optional_number_can_be_left_out_and_given():
    at = form(Collapse)
    assert at.session_state["out"].target_layers is None
    at.number_input(key="form.target_layers").set_value(21).run()
    assert at.session_state["out"].target_layers == 21


def test_fields_that_disagree_give_one_sentence_and_no_spec():
    at = form(Collapse)
    at.number_input(key="form.target_layers").set_value(21)
    at.number_input(key="form.target_share").set_value(0.5)
    at.run()
    assert not at.exception
    assert at.session_state["out"] is None
    assert [error.value for error in at.error] == ["Give target_layers or target_share, not both."]


def test_spans_and_layers_are_read_from_text():
    at = form(Merge)
    assert at.session_state["out"] is None
    assert at.info, "an empty list is no error, but a hint"
    at.text_input(key="form.spans").set_value("6:10, 20:22").run()
    assert at.session_state["out"] == Merge(spans=((6, 10), (20, 22)))
    at.text_input(key="form.spans").set_value("10:6").run()
    assert at.session_state["out"] is None
    assert "empty, inverted" in at.error[0].value
    at.text_input(key="form.spans").set_value("ten").run()
    assert at.error[0].value == "'ten' is no range; write start:stop, for example 6:10."


def test_choice_of_a_method_brings_its_own_fields():
    at = form(Prune)
    at.segmented_control(key="form.method").set_value("SparseGPT").run()
    at.number_input(key="form.method.SparseGPT.damping").set_value(0.05).run()
    assert at.session_state["out"] == Prune(method=SparseGPT(damping=0.05))
    at.segmented_control(key="form.method").set_value("Structured").run()
    assert at.session_state["out"] == Prune(method=Structured())


def test_shares_are_asked_for_in_per_cent():
    at = form(Wanda)
    level = at.slider(key="form.sparsity")
    assert (level.min, level.max, level.value) == (0, 90, 50)
    level.set_value(35).run()
    assert at.session_state["out"] == Wanda(sparsity=0.35)
    at.slider(key="form.sparsity").set_value(0).run()
    assert at.session_state["out"] is None
    assert at.info[0].value == "Nothing is chosen yet."
    assert not at.error


def test_share_beyond_the_sliders_end_is_kept():
    assert form(Wanda, Wanda(sparsity=0.95)).session_state["out"] == Wanda(sparsity=0.95)


def test_spec_that_may_be_left_out_is_behind_a_switch():
    at = form(Prune)
    at.toggle(key="form.compensation").set_value(True).run()
    at.number_input(key="form.compensation.on.epochs").set_value(1).run()
    assert at.session_state["out"] == Prune(compensation=Compensate(epochs=1))
    at.toggle(key="form.compensation").set_value(False).run()
    assert at.session_state["out"] == Prune()


def test_mistake_inside_a_spec_that_may_be_left_out_gives_no_spec():
    at = form(Prune)
    at.toggle(key="form.compensation").set_value(True).run()
    at.number_input(key="form.compensation.on.held_out").set_value(0).run()
    assert at.session_state["out"] is None
    assert "laco+ needs windows" in at.error[0].value


def test_choice_that_other_defaults_follow_from_changes_them():
    assert leading(Compensate) == ("mode",)
    at = form(Compensate)
    at.selectbox(key="form.mode").set_value("paper").run()
    assert at.session_state["out"] == Compensate(mode="paper")
    at.number_input(key="form.paper.epochs").set_value(3).run()
    assert at.session_state["out"] == Compensate(mode="paper", epochs=3)
    at.selectbox(key="form.mode").set_value("laco+").run()
    assert at.session_state["out"] == Compensate()


def test_what_was_given_at_the_start_outlives_such_a_choice():
    at = form(Collapse, Collapse(target_share=0.75))
    at.selectbox(key="form.order").set_value("top_down").run()
    assert at.session_state["out"] == Collapse(order="top_down", target_share=0.75)
    at = form(Compensate, Compensate(mode="paper", alpha=0.5))
    at.selectbox(key="form.mode").set_value("laco+").run()
    assert at.session_state["out"] == Compensate(alpha=0.5)
