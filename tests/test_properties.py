"""What holds for every recipe and plan, looked for by hypothesis; the same examples each time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laco.errors import LacoError, RecipeError
from laco.reading import Malformed, parsed, short
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Magnitude,
    Merge,
    ModelRef,
    Prune,
    Recipe,
    SparseGPT,
    Wanda,
    parse_recipe,
)
from laco.ui.plain import code, plain
from laco.ui.spans import kept, parse_layers, parse_spans, removed_by, text_of_spans

STEADY = settings(derandomize=True, max_examples=60, deadline=None, database=None)

words = st.text(min_size=1, max_size=40).filter(lambda t: "\0" not in t and t.isprintable())
models = st.builds(
    ModelRef,
    path=words,
    revision=st.sampled_from(["main", "v1", "content:0123", "a" * 40]),
    dtype=st.sampled_from(["auto", "float32", "bfloat16"]),
    trust_remote_code=st.booleans(),
)
calibrations = st.builds(
    Calibration,
    source=words,
    windows=st.integers(1, 65536),
    length=st.integers(2, 131072),
    seed=st.integers(0, 2**63 - 1),
)
shares = st.floats(0.01, 0.99)
methods = st.one_of(
    st.builds(Magnitude, sparsity=shares),
    st.builds(Wanda, sparsity=shares),
    st.builds(SparseGPT, sparsity=shares),
)
layers = st.lists(st.integers(0, 200), min_size=1, max_size=8, unique=True).map(tuple)


@st.composite
def plans(draw: Any) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A number of layers, and spans beside one another within them."""
    depth = draw(st.integers(3, 40))
    ends = sorted(draw(st.sets(st.integers(0, depth), min_size=2, max_size=8)))
    spans = [
        (start, stop)
        for start, stop in zip(ends[::2], ends[1::2], strict=False)
        if stop - start > 1
    ]
    return depth, tuple(draw(st.permutations(spans)))


merges = plans().filter(lambda plan: plan[1]).map(lambda plan: Merge(spans=plan[1]))
steps = st.one_of(
    st.builds(Drop, layers=layers),
    merges,
    st.builds(Collapse, target_layers=st.integers(1, 100), calibration=calibrations),
    st.builds(Prune, method=methods, calibration=calibrations),
    st.builds(Compensate, calibration=calibrations),
)
recipes = st.builds(Recipe, model=models, steps=st.lists(steps, max_size=4).map(tuple))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a document, the document itself left out."""
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    found = []
    for name, inner in items:
        found += [(*path, name), *places(inner, (*path, name))]
    return found


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def refusal(call: Callable[[], object]) -> str | None:
    """What was said to this call; None if it was carried out. Any other error fails the test."""
    try:
        call()
    except (LacoError, Malformed) as error:
        return str(error)
    return None


def is_one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text and len(text) < 1500


@STEADY
@given(recipes)
def test_recipe_survives_json_with_its_keys(recipe: Recipe):
    again = parse_recipe(recipe.model_dump_json())
    assert again == recipe
    assert again.keys() == recipe.keys()
    assert parsed(recipe.model_dump_json()) == recipe.model_dump(mode="json")


@STEADY
@given(recipes, st.randoms(use_true_random=False))
def test_key_depends_neither_on_order_nor_on_defaults_written_out(recipe: Recipe, draw: Any):
    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        items = list(value.items())
        draw.shuffle(items)
        return {name: shuffled(item) for name, item in items}

    assert parse_recipe(shuffled(recipe.model_dump(mode="json"))).key == recipe.key


@STEADY
@given(recipes, steps)
def test_one_more_step_keeps_every_key_before_it(recipe: Recipe, step: Any):
    longer = recipe.then(step)
    assert longer.keys()[:-1] == recipe.keys()
    assert len(set(longer.keys())) == len(longer.steps) + 1


@STEADY
@given(recipes, st.data())
def test_field_that_there_is_not_is_refused_in_one_sentence(recipe: Recipe, data: Any):
    document = recipe.model_dump(mode="json")
    objects = [(), *(path for path in places(document) if isinstance(at(document, path), dict))]
    spoilt = copy.deepcopy(document)
    at(spoilt, data.draw(st.sampled_from(objects)))["windoows"] = 3
    with pytest.raises(RecipeError) as refused:
        parse_recipe(spoilt)
    assert is_one_sentence(str(refused.value))
    assert "windoows" in str(refused.value)


@STEADY
@given(recipes, values, st.data())
def test_any_value_in_any_place_is_a_recipe_or_one_sentence(recipe: Recipe, value: Any, data: Any):
    document = recipe.model_dump(mode="json")
    *way, last = data.draw(st.sampled_from(places(document)))
    at(document, tuple(way))[last] = value
    refused = refusal(lambda: parse_recipe(document).keys())
    assert refused is None or is_one_sentence(refused)


@STEADY
@given(st.text() | values.map(lambda value: json.dumps(value)))
def test_text_is_json_or_malformed(text: str):
    refused = refusal(lambda: parsed(text))
    if refused is None:
        assert parsed(text) == json.loads(text)
    else:
        assert "\n" not in refused


@STEADY
@given(plans())
def test_plan_leaves_the_layers_that_its_spans_say(plan: tuple[int, tuple[tuple[int, int], ...]]):
    depth, spans = plan
    if not spans:
        return
    step = Merge(spans=spans)
    gone = removed_by(step, depth)
    stay = kept(gone, depth)
    assert len(stay) == depth - sum(stop - start - 1 for start, stop in spans)
    assert sorted((*gone, *stay)) == list(range(depth))
    assert list(stay) == sorted(set(stay)), "each new layer lies above the one before it"
    for start, stop in spans:
        assert start in stay
        assert not set(range(start + 1, stop)) & set(stay)
    assert parse_spans(text_of_spans(spans)) == spans
    with pytest.raises(RecipeError):
        removed_by(step, max(stop for _, stop in spans) - 1)


@STEADY
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_spans_that_cut_through_each_other_are_refused(a: int, b: int, c: int, d: int):
    spans = ((min(a, b), max(a, b) + 2), (min(c, d), max(c, d) + 2))
    (first, last), (start, stop) = spans
    beside = stop <= first or last <= start
    around = start <= first and last <= stop
    if beside or around:
        assert Merge(spans=spans).spans == spans
    else:
        with pytest.raises(RecipeError, match="cuts through"):
            parse_recipe({"model": {"path": "x"}, "steps": [{"kind": "merge", "spans": spans}]})


@STEADY
@given(st.text() | st.integers().map(str) | st.from_regex(r"[\[\d,:; ²\-]+"))
def test_typed_ranges_are_read_or_refused_in_one_sentence(text: str):
    for read in (parse_spans, parse_layers):
        assert "\n" not in (refusal(lambda read=read: read(text)) or "")


@STEADY
@given(st.text())
def test_text_of_others_stays_in_its_line(text: str):
    for shown in (plain(text), code(text), short(text)):
        assert "\n" not in shown
