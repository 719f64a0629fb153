"""The model hub, asked with a short patience: what a name means there, and its files here.

Whoever has no network learns it within three seconds, with the choices that need none. Nothing
here imports torch. Next: `reference.py`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from laco.errors import ModelError

PATIENCE = 3.0  # seconds
OFFLINE_MODELS = "`bundled:smollm2-135m`, a folder, or a .gguf file"
COMMIT = re.compile(r"[0-9a-f]{40}")
FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]
FILES += ["README.md", "LICENSE*", "NOTICE*", "USE_POLICY*"]  # an export says what they say

T = TypeVar("T")


class Unreachable(Exception):  # noqa: N818 - caught here and in corpora, never shown
    """The hub did not answer; the message says why, in a few words."""


def is_name(path: str) -> bool:
    """Whether a text can be a hub id: `name`, `org/name`, with `@revision` or not."""
    return re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)?(@[\w./-]+)?", path) is not None


def split_revision(path: str, revision: str) -> tuple[str, str]:
    """`org/name@revision` taken apart; without the `@`, the revision as given."""
    name, _, said = path.partition("@")
    if said and revision not in ("main", said):
        raise ModelError(f"{path!r} and revision {revision!r} disagree; give the revision once.")
    return name, said or revision


def commit_of(name: str, revision: str) -> str:
    """The commit that a branch or tag of a model stands at now. A commit stays as it is."""
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi, constants, errors

    if constants.HF_HUB_OFFLINE:
        raise ModelError(_offline(name, revision, "HF_HUB_OFFLINE is set"))
    try:
        info: Any = within_patience(
            lambda: HfApi().model_info(name, revision=revision, timeout=PATIENCE)
        )
    except Unreachable as error:
        raise ModelError(_offline(name, revision, str(error))) from None
    except errors.GatedRepoError:
        raise ModelError(
            f"{name} is gated; accept its terms on its page and set HF_TOKEN, or choose "
            f"{OFFLINE_MODELS}."
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"The hub has no model {name!r}, or it is private; check the spelling, or set HF_TOKEN."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{name} has no revision {revision!r}; check the branch or tag.") from None
    except errors.HfHubHTTPError as error:
        raise ModelError(_offline(name, revision, first_line(error))) from None
    files = [item.rfilename for item in info.siblings or ()]
    if files and not any(file.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name} has no safetensors weights, and pickled ones can run code when opened; "
            "choose another revision, or convert it somewhere you trust it."
        )
    return info.sha


def description(name: str, commit: str) -> Path:
    """A folder with a hub model's config.json, fetched if it is not here yet."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json", revision=commit)
    if isinstance(cached, str):
        return Path(cached).parent
    return _fetch(
        name, commit, lambda: Path(hf_hub_download(name, "config.json", revision=commit)).parent
    )


def snapshot(name: str, commit: str, is_whole: Callable[[Path], bool]) -> Path:
    """A folder with a hub model's weights and tokenizer, downloaded if it is not here yet."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=commit, local_files_only=True))
        if is_whole(folder):
            return folder
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError):
        pass  # not here, or not whole: it is fetched below

    def download() -> Path:
        folder = snapshot_download(
            name, revision=commit, allow_patterns=FILES, ignore_patterns=["*/*"]
        )
        return Path(folder)

    return _fetch(name, commit, download)


def headers(name: str, commit: str) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """A hub model's tensors by name: dtype, shape, bytes. Fetches the files' headers only."""
    from huggingface_hub import errors, get_safetensors_metadata

    try:
        found = _fetch(name, commit, lambda: get_safetensors_metadata(name, revision=commit))
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError) as error:
        raise ModelError(f"{name}: {first_line(error)}; choose another revision.") from None
    return {
        tensor: (about.dtype, tuple(about.shape), about.data_offsets[1] - about.data_offsets[0])
        for file in found.files_metadata.values()
        for tensor, about in file.tensors.items()
    }


def data_file(name: str, revision: str, pattern: str) -> Path:
    """A file of a hub data set, the first that matches `pattern`; the copy here if there is one.

    Raises `Unreachable` when it is not here and the hub does not answer.
    """
    import fnmatch

    from huggingface_hub import HfApi, constants, errors, hf_hub_download

    folder = Path(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}", "snapshots")
    here = sorted(folder.glob(f"*/{pattern}"))
    if here:
        return here[-1]
    if constants.HF_HUB_OFFLINE:
        raise Unreachable("HF_HUB_OFFLINE is set")
    try:
        info: Any = within_patience(
            lambda: HfApi().dataset_info(name, revision=revision, timeout=PATIENCE)
        )
        files = sorted(item.rfilename for item in info.siblings or ())
        match = next(iter(fnmatch.filter(files, pattern)), None)
        if match is None:
            raise Unreachable(f"it no longer has {pattern}")
        return Path(hf_hub_download(name, match, repo_type="dataset", revision=info.sha))
    except (OSError, errors.HfHubHTTPError) as error:
        raise Unreachable(first_line(error)) from None


def _fetch(name: str, commit: str, fetch: Callable[[], T]) -> T:
    """What `fetch` downloads. The hub must answer at once; the download itself may take long."""
    from huggingface_hub import HfApi, constants, errors

    if constants.HF_HUB_OFFLINE:
        raise ModelError(_offline(name, commit, "HF_HUB_OFFLINE is set"))
    try:
        within_patience(lambda: HfApi().model_info(name, revision=commit, timeout=PATIENCE))
        return fetch()
    except (Unreachable, OSError, errors.HfHubHTTPError) as error:
        raise ModelError(_offline(name, commit, first_line(error))) from None


def answers() -> bool:
    """Whether the hub answers at all, unless it is switched off."""
    import urllib.error
    from urllib.request import Request, urlopen

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = Request(constants.ENDPOINT, method="HEAD")
    try:
        within_patience(lambda: urlopen(request, timeout=PATIENCE).close())  # nosec B310
    except urllib.error.HTTPError:
        return True  # an answer that says no is an answer
    except (Unreachable, OSError):
        return False
    return True


def within_patience(ask: Callable[[], T]) -> T:
    """What `ask` returns, or `Unreachable` when it fails to connect or has not answered in time.

    An answer that says no (not found, gated) is raised as it is. Name resolution knows no
    timeout of its own, so the question is asked in a thread that may be left behind.
    """
    from huggingface_hub import errors

    answers: list[T] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if answers:
        return answers[0]
    if not failures:
        raise Unreachable(f"no answer within {PATIENCE:g} seconds")
    if isinstance(failures[0], errors.HfHubHTTPError | errors.EntryNotFoundError):
        raise failures[0]
    raise Unreachable(first_line(failures[0]))


def first_line(error: Exception) -> str:
    """What an error says, in one line; a heading goes with what stands under it."""
    said = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(said[:2]) if said[0].endswith(":") else said[0]


def _offline(name: str, revision: str, reason: str) -> str:
    cached = _cached_commit(name, revision)
    here = f" (or the copy in this machine's hub cache, `{name}@{cached}`)" if cached else ""
    return f"The hub cannot be asked for {name} ({reason}); choose {OFFLINE_MODELS}{here}."


def _cached_commit(name: str, revision: str) -> str | None:
    """The commit that a branch stood at when it was last downloaded here."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "refs", revision)
    return place.read_text().strip() if place.is_file() else None
