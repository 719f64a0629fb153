"""Commands that look at a model and leave it as it is. Next: `work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laco.cli.options import AS_IT_IS, CACHE, Device, Held, Json, Model, Store, grouped
from laco.cli.terminal import answer, columns, working
from laco.cli.work import carry_out, opened

if TYPE_CHECKING:
    from laco.evaluations import Analysis


def doctor(as_json: Json = False, store: Store = CACHE) -> None:
    """Say what is installed, which devices there are, and what is amiss."""
    from laco.cli.doctor import examine

    found = examine(store)
    lines = [[name, found[name]] for name in ("python", "torch", "transformers", "device")]
    lines += [["devices", ", ".join(device["name"] for device in found["devices"])]]
    lines += [[name, says] for name, says in found["places"].items()]
    lines += [["speed", f"{found['speed']['forward']['768'] / 1e9:.0f} GFLOP/s (layer 768 wide)"]]
    lines += [["model hub", "can be reached" if found["hub"] else "cannot be reached"]]
    lines += [["offline bundle", "installed" if found["offline_bundle"] else "not installed"]]
    problems = [f"Problem: {problem}" for problem in found["problems"]] or ["No problems."]
    missing = [f"Missing: {lack}" for lack in found["missing"]]
    answer(found, "\n".join([columns(lines), *problems, *missing]), as_json)


@grouped
def inspect(
    model: Model, held: Held = AS_IT_IS, as_json: Json = False, store: Store = CACHE
) -> None:
    """Describe a model from its config and file headers, without reading weights."""
    from laco import card
    from laco.cli.arguments import read_model
    from laco.recipe import ModelRef
    from laco.report import format_value

    runs = opened(store)
    recipe = read_model(model, runs, held.dtype, held.trust)
    ref = recipe.model
    artifact = runs.artifact(recipe.key) if recipe.steps else None
    if artifact is not None:
        ref = ModelRef(path=str(artifact.path), dtype=ref.dtype, trust_remote_code=held.trust)
    with working():
        found = card.inspect(ref, runs.folder)
    units = {"bytes": "bytes", "parameters": "", "layer_parameters": ""}
    lines: list[list[str]] = []
    for name, value in found.items():
        if name in units and isinstance(value, int | float):
            lines.append([name, format_value(value, units[name])])
        elif isinstance(value, str | int | float):
            lines.append([name, str(value)])
    for name, verdict in found["capabilities"].items():
        words = "yes" if verdict["ok"] else f"no: {verdict['reason']}"
        if verdict["ok"] and name in found["expected"]["work"]:
            work = found["expected"]["work"][name]
            memory = format_value(work["memory_bytes"], "bytes")
            words = f"yes, about {memory} of memory, {work['seconds']:.0f} s here"
        lines.append([f"can {name}", words])
    if not found["expected"]["measured"]:
        lines.append(["speed of this machine", "assumed; laco doctor measures it"])
    answer(found, columns(lines), as_json)


@grouped
def similarity(
    model: Model,
    corpus: Annotated[str | None, typer.Option(help="The text to look at.")] = None,
    windows: Annotated[int | None, typer.Option(help="Number of windows.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in each window.")] = None,
    measure: Annotated[
        str, typer.Option(help="cosine, angular, relative_l2 or cka; of weights the first or third")
    ] = "cosine",
    weights: Annotated[
        bool, typer.Option("--weights", help="Compare the layers' weights, not hidden states.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write to F.json, F.html or F.csv.")] = None,
    held: Held = AS_IT_IS,
    device: Device = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Map how alike a model's layers are, and how much influence each has."""
    from laco.cli import maps
    from laco.cli.arguments import read_source
    from laco.evaluations import ParameterSimilarity, Similarity

    maps.check(measure, weights, out)
    analysis: Analysis = ParameterSimilarity()
    if not weights:
        default = Similarity().calibration
        calibration = {
            "source": default.source if corpus is None else read_source(corpus),
            "windows": default.windows if windows is None else windows,
            "length": default.length if length is None else length,
        }
        analysis = _spec(Similarity, calibration=calibration)
    document = _analyse(model, analysis, store, held, device)
    found = (maps.weight_map if weights else maps.depth_map)(document, measure)
    if out is not None:
        maps.write(out, found, document)
    answer(found, maps.in_words(found), as_json)


@grouped
def whatif(
    model: Model,
    longest: Annotated[int | None, typer.Option(help="Longest span to try, in layers.")] = None,
    merge: Annotated[str, typer.Option(help="drop, telescoped, rdsc or mean.")] = "drop",
    held: Held = AS_IT_IS,
    device: Device = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Try to collapse every span, one at a time, and say what each would cost."""
    from laco.cli import maps
    from laco.evaluations import WhatIf

    analysis = _spec(WhatIf, merge=merge, **({} if longest is None else {"longest": longest}))
    document = _analyse(model, analysis, store, held, device)
    answer(document, maps.best_spans(document), as_json)


def _analyse(
    model: str, analysis: Analysis, store: Path, held: Held, device: str | None
) -> dict[str, Any]:
    """The document of one analysis, from the store or newly made."""
    from laco.cli.arguments import read_model
    from laco.errors import StoreError
    from laco.evaluations import Request

    runs = opened(store)
    recipe = read_model(model, runs, held.dtype, held.trust)
    request = Request(recipe=recipe, analyses=(analysis,))
    key = carry_out(request, runs, device)["key"]
    document = runs.analysis(key, analysis)
    if document is None:
        raise StoreError(f"The {analysis.kind} of {key} has gone from the store; run it again.")
    return {"key": key, **document}


def _spec(kind: Any, **fields: Any) -> Any:
    """A spec from options. Raises `RecipeError` naming each bad one."""
    from pydantic import ValidationError

    from laco.errors import RecipeError
    from laco.recipe import complaints

    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RecipeError(f"The options cannot be taken: {complaints(error)}.") from None
