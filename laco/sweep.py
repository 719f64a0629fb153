"""A recipe with some of its fields varied, as data: what `laco sweep` and the Sweeps page start.

`Sweep` is one description, `members` are the requests that it stands for: the untouched model, then
a recipe for each choice of values. Nothing here starts them. Next: `sweeps.py`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from laco.errors import RecipeError
from laco.evaluations import Evaluation, Footprint, Perplexity, Request
from laco.reading import Malformed, parsed, short
from laco.recipe import Recipe, Spec, complaints
from laco.spec import Name, shortest

MOST_MEMBERS = 200
MOST_FIELDS = 6
MOST_WAY = 20  # names in a field's place

Place = Annotated[str, Field(min_length=1, max_length=300)]
Values = Mapping[str, Any]  # by a field's place


@dataclass(frozen=True)
class Member:
    """One recipe of a sweep with its values; without any it is the untouched model."""

    values: Values
    request: Request


class Sweep(Spec):
    """A recipe, fields of it that vary, and what to measure of each member and of its original.

    A value is written as in a recipe's file. Fields that follow from a varied one follow it, unless
    the recipe gives them a value that is not their default.
    """

    name: Name = Field(default="", max_length=80, description="A few words to know it by")
    recipe: Recipe = Field(description="What all members have in common")
    evaluations: tuple[Evaluation, ...] = Field(
        default=(Perplexity(), Footprint()), min_length=1, description="Measured of each member"
    )
    vary: dict[Place, tuple[JsonValue, ...]] = Field(
        min_length=1,
        max_length=MOST_FIELDS,
        description="Values by a field's place: `steps.0.target_layers`, `steps.0.method.sparsity`",
    )
    how: Literal["grid", "list"] = Field(
        default="grid",
        description="grid: every value with every other; list: first with first, and so on",
    )

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        try:
            members(self)
        except RecipeError as error:
            raise ValueError(str(error).rstrip(".")) from None
        return self

    @property
    def title(self) -> str:
        """Its name, or what varies."""
        return self.name or " × ".join(field_names(list(self.vary)).values())


def parse_sweep(document: Any) -> Sweep:
    """A sweep from JSON data. Raises `RecipeError` naming what is wrong, in one sentence."""
    try:
        return Sweep.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The sweep cannot be read: {complaints(error)}.") from None


def members(sweep: Sweep) -> list[Member]:
    """The untouched model, then every member in the order of its values. Raises `RecipeError`."""
    found: dict[Recipe, Values] = {}
    base = shortest(sweep.recipe)
    for path in sweep.vary:
        _write_out(base, sweep.recipe, path.split(".")[:-1])
    for values in choices(sweep.vary, sweep.how):
        recipe = _recipe(base, values)
        if recipe in found:
            raise RecipeError(
                f"{told(values)} is the same recipe as {told(found[recipe])}; leave one of them out"
            )
        found[recipe] = values
    originals = dict.fromkeys(Recipe(model=recipe.model) for recipe in found)
    untouched: dict[Recipe, Values] = {recipe: {} for recipe in originals if recipe not in found}
    return [
        Member(values, Request(recipe=recipe, evaluations=sweep.evaluations))
        for recipe, values in (untouched | found).items()
    ]


def choices(vary: Mapping[str, Sequence[Any]], how: str) -> list[dict[str, Any]]:
    """The values of each member. Raises `RecipeError` for lists that give none, or too many."""
    for path, values in vary.items():
        if not values:
            raise RecipeError(f"{short(path)} has no values; give it at least one")
        seen = [json.dumps(value) for value in values]
        twice = next((text for text in seen if seen.count(text) > 1), None)
        if twice is not None:
            raise RecipeError(f"{short(path)} has {short(twice)} twice; leave one of them out")
    lengths = {path: len(values) for path, values in vary.items()}
    if how == "list" and len(set(lengths.values())) > 1:
        said = ", ".join(f"{short(path)} {length}" for path, length in lengths.items())
        raise RecipeError(f"a list wants as many values of each field, and there are {said}")
    count = math.prod(lengths.values()) if how == "grid" else max(lengths.values())
    if count > MOST_MEMBERS:
        raise RecipeError(f"it has {count} members, and {MOST_MEMBERS} are the most; vary less")
    rows = itertools.product(*vary.values()) if how == "grid" else zip(*vary.values(), strict=True)
    return [dict(zip(vary, row, strict=True)) for row in rows]


def with_value(document: Any, path: str, value: Any) -> Any:
    """A recipe's document with another value in one place; numbers in a path count list items.

    Whether there is such a field is said when the document is read. Raises `RecipeError` for a
    place that no recipe has.
    """
    found = json.loads(json.dumps(document))
    *way, last = path.split(".")
    if len(way) > MOST_WAY:
        raise RecipeError(f"{short(path)}: no field lies so deep in a recipe.")
    place = found
    for part in way:
        place = place.setdefault(part, {}) if isinstance(place, dict) else _item(place, part, path)
    if isinstance(place, dict):
        place[last] = value
    else:
        _item(place, last, path)
        place[int(last)] = value
    return found


def in_order(chains: Sequence[Sequence[str]]) -> list[int]:
    """The order in which to start recipes, given by their chained keys, so that little waits.

    First those that have nothing in common beyond a model, then those that stand on what the ones
    before made; of two that stand on the same, the second comes a round later. So several at once
    work on different things, and what they share is there when it is needed.
    """
    order: list[int] = []
    made: set[str] = set()
    left = list(range(len(chains)))
    while left:
        at_work: set[str] = set()
        later: list[int] = []
        for place in left:
            missing = set(chains[place][1:]) - made
            if missing & at_work:
                later.append(place)
            else:
                order.append(place)
                at_work |= missing
        made |= at_work
        left = later
    return order


def told(values: Values) -> str:
    """Values in words: `target_layers 27, seed 1`; `the original` for none."""
    names = field_names(list(values))
    said = (f"{names[path]} {text_of(value)}" for path, value in values.items())
    return ", ".join(said) or "the original"


def field_names(paths: Sequence[str]) -> dict[str, str]:
    """A short name for each field: as much of its place as tells it from the others."""
    names: dict[str, str] = {}
    for path in paths:
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            names[path] = ".".join(parts[-count:])
            others = [other.split(".")[-count:] for other in paths if other != path]
            if parts[-count:] not in others and not parts[-count].isdecimal():
                break
    return names


def text_of(value: Any) -> str:
    """A value as one writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_values(text: str) -> list[Any]:
    """Values from what a person types: `10, 20, 30`, `0.1:0.5:0.1` (ends included), `rdsc, drop`.

    A JSON list is taken as it is. Raises `RecipeError`.
    """
    if text.strip().startswith("[") and text.strip().endswith("]"):
        try:
            return parsed(text)
        except Malformed:
            pass  # lists beside each other: `[1], [2, 3]`
        try:
            return parsed(f"[{text}]")
        except Malformed as error:
            raise RecipeError(f"The values {short(text)} cannot be read: they {error}.") from None
    found: list[Any] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found += _range(part) if part.count(":") == 2 else [_value(part)]
    return found


def _range(text: str) -> list[Any]:
    try:
        start, stop, step = (Decimal(part) for part in text.split(":"))
        whole = all(number == number.to_integral_value() for number in (start, stop, step))
        count = int((stop - start) / step) + 1 if step else 0
    except (InvalidOperation, OverflowError, ValueError):
        raise RecipeError(f"{short(text)}: a range is start:stop:step, as 0.1:0.5:0.1.") from None
    if not 1 <= count <= MOST_MEMBERS:
        raise RecipeError(
            f"{short(text)}: a range goes from its start to its stop by a step in that direction, "
            f"in at most {MOST_MEMBERS} values."
        )
    numbers = (start + place * step for place in range(count))
    return [int(number) if whole else float(number) for number in numbers]


def _value(text: str) -> Any:
    try:
        return parsed(text)
    except Malformed:
        return text


def _item(place: Any, part: str, path: str) -> Any:
    if not isinstance(place, list):
        raise RecipeError(f"{short(path)}: {short(part)} lies inside a plain value.")
    if not re.fullmatch(r"[0-9]{1,9}", part) or int(part) >= len(place):
        raise RecipeError(f"{short(path)}: there is no item {short(part)}; there are {len(place)}.")
    return place[int(part)]


def _write_out(document: Any, recipe: Recipe, way: Sequence[str]) -> None:
    """Write down the specs on the way to a field that went without saying."""
    spec: Any = recipe
    for part in way:
        if isinstance(spec, Spec) and isinstance(document, dict):
            spec = getattr(spec, part) if part in type(spec).model_fields else None
            if isinstance(spec, Spec):
                document.setdefault(part, shortest(spec))
            document = document.get(part)
        elif isinstance(spec, tuple) and part.isdecimal() and int(part) < len(document):
            spec, document = spec[int(part)], document[int(part)]
        else:
            return


def _recipe(base: Any, values: Values) -> Recipe:
    document = base
    for path, value in values.items():
        document = with_value(document, path, value)
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{told(values)} cannot be: {complaints(error)}") from None
