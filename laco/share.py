"""Results beyond one machine: any address that fsspec knows, as `s3://bucket/laco` or `/mnt/laco`.

What lies under a name counts once its marker is there, a small object that is written last, lists
the files with their digests, and carries a seal. Each upload has a folder of its own, so that two
of the same result do no harm. It knows no engine and no model. Next: `sharing.py`.

    artifacts/<key>.json            the marker of a result
    artifacts/<key>/<upload>/…      its files; of uploads that ended early, nothing refers to them
    models/<hash>.json, …           an original model's folder, in the same way
    metrics/<key>.json, analyses/…  what was measured, as in a store
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from laco.disk import digest_of, is_sound, sealed
from laco.errors import StoreError

_PATIENCE = {  # seconds and tries, where a file system lets us say; else it waits for minutes
    "s3": {"config_kwargs": {"connect_timeout": 10, "retries": {"max_attempts": 2}}},
}
NOTHING: Mapping[str, str] = MappingProxyType({})
_MOST_WORDS = 160  # of an error's own


class Share:
    """A place that several machines reach. Every error is a `StoreError` of one sentence."""

    def __init__(self, address: str) -> None:
        self.address = address
        with self._explained("cannot be used"):
            import fsspec  # here, since few need it
            from fsspec.utils import get_protocol

            protocol = get_protocol(address)
            self._is_local = protocol in ("file", "local")
            options = {"auto_mkdir": True} if self._is_local else _PATIENCE.get(protocol, {})
            self._files, root = fsspec.url_to_fs(address, use_listings_cache=False, **options)
            self._root = root.rstrip("/")

    def has(self, kind: str, name: str) -> bool:
        """Whether something whole lies there under this name."""
        return self._marker(kind, name) is not None

    def put(
        self, kind: str, name: str, files: Mapping[str, Path], known: Mapping[str, str] = NOTHING
    ) -> bool:
        """Upload files under a name, by their paths within it; False if it is there already.

        Raises `StoreError` for a file that has not the digest that is known of it.
        """
        if self.has(kind, name):
            return False
        upload = uuid.uuid4().hex
        told: dict[str, dict[str, Any]] = {}
        with self._explained(f"does not take {name}"):
            for path, file in files.items():
                told[path] = {"bytes": file.stat().st_size, "sha256": digest_of(file)}
                if told[path]["sha256"] != known.get(path, told[path]["sha256"]):
                    raise StoreError(f"{file} is not what was saved, so {name} was not uploaded.")
                self._files.put_file(str(file), self._path(kind, name, upload, path))
        self.put_document(kind, name, {"upload": upload, "files": told})
        return True

    def get(self, kind: str, name: str, folder: Path) -> bool:
        """Download what lies under a name into a folder, each file checked; False if not there.

        Raises `StoreError` where a file is not what its marker says, which the folder then lacks.
        """
        marker = self._marker(kind, name)
        if marker is None:
            return False
        for path, about in marker["files"].items():
            target = folder / _inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._explained(f"does not give {name}"):
                self._files.get_file(self._path(kind, name, marker["upload"], path), str(target))
            if target.stat().st_size != about["bytes"] or digest_of(target) != about["sha256"]:
                target.unlink()
                raise StoreError(
                    f"{path} of {name} in {self.address} is not what was uploaded; remove "
                    f"{kind}/{name}.json there, and upload it again."
                )
        return True

    def put_document(self, kind: str, name: str, document: Mapping[str, Any]) -> None:
        """Put a JSON document there in one move, with its seal."""
        path = self._path(kind, f"{name}.json")
        data = json.dumps(sealed(document), allow_nan=False).encode()
        with self._explained(f"does not take {name}"):
            if not self._is_local:  # an object appears whole
                self._files.pipe_file(path, data)
                return
            partial = f"{path}.partial-{uuid.uuid4().hex}"
            self._files.pipe_file(partial, data)
            self._files.mv(partial, path)

    def document(self, kind: str, name: str) -> dict[str, Any] | None:
        """The document under a name; None if there is none, or it is not as it was sealed."""
        path = self._path(kind, f"{name}.json")
        with self._explained(f"does not say whether {name} is there"):
            try:
                data = self._files.cat_file(path)
            except FileNotFoundError:
                return None
        try:
            found = json.loads(data)
        except ValueError:
            return None
        return found if isinstance(found, dict) and "seal" in found and is_sound(found) else None

    def names(self, kind: str) -> list[str]:
        """What lies there, whole or not: the names of all markers, or documents, of a kind."""
        with self._explained("cannot be listed"):
            try:
                paths = self._files.ls(self._path(kind), detail=False)
            except FileNotFoundError:
                return []
        return sorted(PurePosixPath(path).stem for path in paths if str(path).endswith(".json"))

    def _marker(self, kind: str, name: str) -> dict[str, Any] | None:
        found = self.document(kind, name)
        return found if found is not None and "files" in found else None

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._root, *parts)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn any error of a file system, each of which has kinds of its own, into a sentence."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"The share {self.address} {what}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """What went wrong and what to do, for errors of many libraries."""
    names = {kind.__name__ for kind in type(error).__mro__}
    said = " ".join(str(error).split()).rstrip(".")[:_MOST_WORDS]
    if isinstance(error, ImportError):
        return f"a package is missing ({said}); run `pip install 'laco[share]'`"
    if names & {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}:
        return "there are no credentials; set them up as its own tools want them"
    if isinstance(error, PermissionError):
        return f"access is denied ({said}); look at credentials and rights"
    if isinstance(error, FileNotFoundError):
        return f"its bucket or folder is not there ({said}); make it first"
    if names & {
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ConnectionError",
        "TimeoutError",
    }:
        return f"it cannot be reached ({said}); look at the network and the address"
    if isinstance(error, ValueError) and "rotocol" in said:
        return f"its kind is not known ({said}); write s3://, gs://, file:// or a folder"
    return said or type(error).__name__


def _inside(path: str) -> Path:
    """A path within a folder, as a marker names it; nothing leads out of it."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise StoreError(f"The share names a file {path!r} outside its folder; nothing was taken.")
    return Path(*parts.parts)
