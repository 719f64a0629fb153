"""Specs -> widgets -> specs, driven without a browser."""

import pytest
from streamlit.testing.v1 import AppTest

from laco.evaluations import Perplexity, Similarity, WhatIf
from laco.recipe import Calibration, Collapse, Drop, Merge, Spec

SPECS = [
    Collapse(),
    Collapse(order="top_down", interval=3, threshold=0.7, merge="telescoped"),
    Collapse(order="influence", target_share=0.8, lowest=2, highest=20),
    Collapse(calibration=Calibration(source="file:a.txt", windows=3, unit="sentence", seed=7)),
    Merge(spans=((6, 10), (20, 22)), merge="mean", parameters="projections"),
    Drop(layers=(7, 8, 12)),
    Similarity(tokens="last", shards=2),
    WhatIf(longest=4, merge="rdsc"),
    Perplexity(stride=128, windows=None),
]


def show(spec_class, start):  # runs as a script of its own, so it imports what it needs
    import streamlit as st

    from laco.ui.forms import spec_form

    st.session_state["out"] = spec_form(spec_class, "form", start=start)


def form(spec_class: type[Spec], start: Spec | None = None) -> AppTest:
    at = AppTest.from_function(show, kwargs={"spec_class": spec_class, "start": start}).run()
    assert not at.exception
    return at


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_form_gives_back_the_spec_it_starts_from(spec):
    assert form(type(spec), spec).session_state["out"] == spec


@pytest.mark.parametrize("spec_class", [Collapse, Similarity, WhatIf, Perplexity, Calibration])
def test_untouched_form_gives_the_defaults(spec_class):
    assert form(spec_class).session_state["out"] == spec_class()


def test_bounds_and_help_come_from_the_field():
    span = form(Collapse).number_input(key="form.span")
    assert (span.min, span.max) == (2, 64)
    assert span.help == Collapse.model_fields["span"].description


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
