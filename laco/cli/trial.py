"""`laco try`: one prompt, several models, in this process, and where their texts part.

The Try it page asks a process that stays instead (`../warm.py`). Next: `../warmed.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from laco.cli.options import AS_IT_IS, CACHE, Device, Held, Json, Store, grouped
from laco.cli.terminal import answer, working
from laco.cli.work import device_here, opened

if TYPE_CHECKING:
    from laco.continued import Text

SHOWN = 3  # of the likeliest first tokens, without --json


def try_(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Models or results, three at most.")
    ],
    prompt: Annotated[
        str | None, typer.Option(help="The text to continue; unset: one that is ready.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="New tokens, at most.")] = 48,
    held: Held = AS_IT_IS,
    device: Device = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Have models continue a prompt, and mark where their texts first differ.

    Each takes the token that it holds likeliest. With a model that fails the status is 1.
    """
    from laco import warm
    from laco.cli.arguments import read_model
    from laco.continued import difference, text_of
    from laco.errors import Cancelled, JobError
    from laco.prompts import PROMPTS
    from laco.report import describe

    runs = opened(store)
    recipes = [read_model(model, runs, held.dtype, held.trust) for model in models]
    asked = warm.checked(recipes, PROMPTS[0] if prompt is None else prompt, tokens)
    lines: list[dict[str, Any]] = []
    with working() as (progress, cancelled):
        from laco.warmed import Shelf

        def say(line: dict[str, Any]) -> None:
            lines.append(line)
            done = sum("text" in said for said in lines) / (tokens * len(recipes))
            progress(done, line.get("doing") or "writing")

        Shelf(runs, device_here(device)).answer(asked, say, cancelled)
        if cancelled():
            raise Cancelled
    texts = [text_of(lines, index) for index in range(len(recipes))]
    place = difference(texts)
    told = [_document(describe(recipe), text) for recipe, text in zip(recipes, texts, strict=True)]
    document = {"prompt": asked.prompt, "first_difference": place, "models": told}
    words = [
        _in_words(about["model"], text, place) for about, text in zip(told, texts, strict=True)
    ]
    answer(document, "\n\n".join([asked.prompt, *words]), as_json)
    if failed := [text.error for text in texts if text.error]:
        raise JobError(failed[0])


def _document(name: str, text: Text) -> dict[str, Any]:
    first = text.tokens[0].top if text.tokens else ()
    return {
        "model": name,
        "text": text.text,
        "end": text.end,
        "error": text.error,
        "next": [{"token": word, "probability": share} for word, share in first],
    }


def _in_words(name: str, text: Text, place: int | None) -> str:
    """A model's name, its text with a mark where the texts part, and what was likely at first."""
    from laco.continued import start_of

    if not text.tokens:
        return f"{name}\n  {text.error}"
    start = None if place is None else start_of(text, place)
    marked = text.text if start is None else f"{text.text[:start]}▶{text.text[start:]}"
    first = ", ".join(f"{word!r} {share:.1%}" for word, share in text.tokens[0].top[:SHOWN])
    return f"{name}\n{marked}\n  first: {first}"


try_.__name__ = "try"  # what people type; no function can be called so
try_ = grouped(try_)
