"""The options that several commands share, each with its help, alone and in groups.

A group is a dataclass of options; a command marked `grouped` takes it as one parameter, and people
type its fields. Next: `work.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

CACHE = Path("cache")

Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Store = Annotated[
    Path,
    typer.Option("--store", metavar="DIR", envvar="LACO_STORE", help="Where results are kept."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model, or a result's key.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A result's key, or its beginning.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="A job, as `laco jobs` lists it.")]
Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's JSON file, or a preset's name.")
]
Start = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model to start from, for a preset."),
]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; unset: as the checkpoint says.")
]
On = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="Where jobs run: local, ray:http://host:8265, slurm; ray: the cluster of Settings.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where to work, as `laco doctor` lists it; unset: the best. Several, with commas "
        "between, share what goes over text."
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: steps.0.threshold=0.7"),
]
Evaluations = Annotated[
    list[str] | None,
    typer.Option(
        "--evaluate",
        metavar="SPEC",
        help="perplexity:CORPUS, kl:CORPUS, zero-shot:TASK,TASK, footprint, latency or "
        "degeneration; repeatable.",
    ),
]


@dataclass(frozen=True)
class Held:
    """How a model is held: its number format, and whether its own code may run."""

    dtype: Dtype = None
    trust: Trust = False


AS_IT_IS = Held()


@dataclass(frozen=True)
class Wanted:
    """A recipe with its changes, on a model, and what to measure of it."""

    recipe: Recipe
    model: Start = None
    changes: Changes = None
    evaluations: Evaluations = None
    dtype: Dtype = None
    trust: Trust = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each group among its parameters replaced by the group's options."""
    groups: dict[str, type] = {}
    shown: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            inside = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                default = parameter.empty if field.default is MISSING else field.default
                shown.append(_keyword(field.name, inside[field.name], default))
        else:
            shown.append(_keyword(name, kind, parameter.default))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    vars(run)["__signature__"] = inspect.Signature(shown)
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
