"""Commands that bring results to a share and from it. Next: `../sharing.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laco.cli.options import CACHE, Json, Store
from laco.cli.terminal import answer, note
from laco.cli.work import opened

if TYPE_CHECKING:
    from laco.share import Share

Address = Annotated[
    str,
    typer.Option(
        "--share",
        metavar="ADDRESS",
        envvar="LACO_SHARE",
        help="s3://bucket/folder, gs://…, file://… or a folder that all machines see.",
    ),
]


def push(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Results to upload; unset: all.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="An original model's folder to upload, and no result."),
    ] = None,
    share: Address = "",
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Upload results, with what was measured of them, for other machines."""
    from laco import sharing
    from laco.cli.arguments import find_key
    from laco.errors import ModelError

    there, found = _share(share), opened(store)
    if model is not None:
        if not (model / "config.json").is_file():
            raise ModelError(f"{model} holds no config.json; give the folder of a model.")
        given = sharing.give_model(there, model)
        answer(
            {"model": str(model), "new": given}, "uploaded" if given else "there already", as_json
        )
        return
    every = [run.key for run in found.runs(metrics=False)]
    chosen = every if not keys else [find_key(key, found) for key in keys]
    new: list[str] = []
    for key in chosen:
        if sharing.give_result(there, found, key):
            new.append(key)
            note(f"uploaded {key[:11]}")
    measured = sharing.give_all_measured(there, found, chosen)
    text = f"Uploaded: {len(new)} results, {measured} measurements."
    answer({"results": new, "measurements": measured}, text, as_json)


def pull(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Results to download; unset: all.")
    ] = None,
    share: Address = "",
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Download results from a share, with what was measured of them."""
    from laco import sharing
    from laco.errors import StoreError

    there, found = _share(share), opened(store)
    names = there.names(sharing.RESULTS)
    for key in keys or ():
        if not any(name.startswith(key) for name in names):
            raise StoreError(f"The share {there.address} has no result {key}.")
    chosen = [name for name in names if not keys or any(name.startswith(key) for key in keys)]
    new: list[str] = []
    for key in chosen:
        if sharing.take_result(there, found, key):
            new.append(key)
            note(f"downloaded {key[:11]}")
    measured = sharing.take_all_measured(there, found, chosen)
    text = f"Downloaded: {len(new)} results, {measured} measurements."
    answer({"results": new, "measurements": measured}, text, as_json)


def _share(address: str) -> Share:
    from laco.errors import StoreError
    from laco.share import Share

    if not address:
        raise StoreError("No share is named; give --share ADDRESS, or set LACO_SHARE.")
    return Share(address)
