"""The options that several commands share, each with its help. Next: `work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
Device = Annotated[
    str | None, typer.Option(help="Where to work, as `laco doctor` lists it; unset: the best.")
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
        "--evaluate", metavar="SPEC", help="perplexity:CORPUS, kl:CORPUS or footprint; repeatable."
    ),
]
