"""Who may do what: who comes in, who may start jobs, and what a browser may name.

The settings are `access.toml` in the store's folder; without it, whoever sits at this machine may
do everything, and nobody else reaches the pages. It does not know how somebody signs in
(`ui/person.py`) or how the server is started (`cli/jobs.py`). What is promised: `docs/security.md`.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from laco.errors import AccessError
from laco.reading import Malformed, is_there, short, text_of

FILE = "access.toml"
WORDS = "anyone may run jobs here"  # to be said by who opens the pages without any sign-in
SECRET = "LACO_PROXY_SECRET"  # nosec B105
ROOTS = "LACO_ROOTS"  # more folders that the pages may use, as in PATH
OPENED = "LACO_OPEN_TO_NETWORK"
LOCAL_NAMES = ("localhost", "127.0.0.1")
NEEDED = ("client_id", "client_secret", "server_metadata_url")  # of a provider

Role = Literal["viewer", "runner", "admin"]


@dataclass(frozen=True)
class Person:
    """Who looks at a page: an e-mail address, or nobody's where there is no sign-in."""

    name: str
    role: Role

    @property
    def is_local(self) -> bool:
        """Whether it is whoever sits at this machine: all jobs are theirs, too."""
        return not self.name

    @property
    def may_run(self) -> bool:
        """Whether they may start jobs."""
        return self.role in ("runner", "admin")

    @property
    def may_set(self) -> bool:
        """Whether they may say where jobs run, which is where this machine's token is sent."""
        return self.is_local or self.role == "admin"

    def owns(self, owner: str) -> bool:
        """Whether what belongs to `owner` is theirs to change: whoever sits here, and an admin."""
        return self.may_run and (self.is_local or self.role == "admin" or self.name == owner)


LOCAL = Person("", "runner")


class Proxy(BaseModel):
    """The headers by which a reverse proxy says who it has signed in, and that it is itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    header: str = Field(min_length=1)
    secret_header: str = Field(min_length=1)


class Settings(BaseModel):
    """What `access.toml` says. `others` is the role of who signs in and is not named."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    people: dict[str, Role] = {}
    others: Role | None = None
    roots: tuple[Path, ...] = ()
    trust_remote_code: bool = False
    proxy: Proxy | None = None


def settings(store: Path) -> Settings:
    """The settings of a store. Raises `AccessError` when they cannot be read: nobody comes in."""
    file = store / FILE
    if not file.exists():
        return Settings()
    try:
        return Settings.model_validate(tomllib.loads(text_of(file)))
    except (Malformed, ValidationError, tomllib.TOMLDecodeError, RecursionError) as error:
        reason = short(str(error).splitlines()[0], 120)
        raise AccessError(f"{file} cannot be read ({reason}); mend it.") from None


def person(known: Settings, email: str) -> Person:
    """The person of this address. Raises `AccessError` for who may not come in."""
    role = known.others
    for name, given in known.people.items():
        if name.casefold() == email.casefold():
            role = given
    if role is None:
        raise AccessError(f"{short(email)} may not use these pages; ask whoever runs them.")
    return Person(email, role)


def require_runner(who: Person) -> None:
    """Raise `AccessError` for who may only look."""
    if not who.may_run:
        raise AccessError(VIEWING)


def require_owner(who: Person, owner: str, what: str = "job") -> None:
    """Raise `AccessError` for whose job (or result) it is not.

    Whoever sits at the machine may change any, and so may an admin.
    """
    require_runner(who)
    if not who.owns(owner):
        raise AccessError(
            f"This {what} belongs to {short(owner) or 'whoever runs this machine'}; ask them."
        )


SETTING = "Whoever runs these pages, or an admin, says where jobs can run; ask them."
VIEWING = "You may look at everything here and start nothing; ask whoever runs these pages."


# --- what a browser may name ----------------------------------------------------------------------


def roots(known: Settings, store: Path, who: Person) -> list[Path]:
    """The folders that the pages may read models, texts and tasks from, and export into.

    The store, the exports beside it, those of the settings and of `LACO_ROOTS`; without sign-in
    the home folder as well.
    """
    more = [Path(text) for text in os.environ.get(ROOTS, "").split(os.pathsep) if text]
    home = [Path.home(), Path.cwd()] if who.is_local else []
    found = [store, store.parent / "exports", *known.roots, *more, *home]
    return [path.expanduser().resolve() for path in found]


def check_path(text: str, known: Settings, store: Path, who: Person) -> None:
    """Raise `AccessError` for a path that lies elsewhere, links followed, there or not."""
    allowed = roots(known, store, who)
    try:
        place = Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):
        place = None
    if place is None or not any(place.is_relative_to(root) for root in allowed):
        raise AccessError(
            f"{short(text)} lies outside of the folders that the pages may use; whoever runs them "
            f"can add it to `roots` in {store / FILE}."
        )


def check_model(path: str, known: Settings, store: Path, who: Person) -> None:
    """Raise `AccessError` for a model's path that lies elsewhere; a hub id is none."""
    if path.startswith(("/", "~", ".")) or path.lower().endswith(".gguf") or is_there(path):
        check_path(path, known, store, who)


def check_request(request: Mapping[str, Any], known: Settings, store: Path, who: Person) -> None:
    """Raise `AccessError` for a request (as data) that names what a browser may not name.

    That is a path elsewhere, or the Python code of a model, unless the settings allow it or there
    is no sign-in.
    """
    for name, value in _fields(request):
        if name == "path":
            check_model(value, known, store, who)
        elif name in ("source", "data") and value.startswith("file:"):
            path = value.removeprefix("file:")
            check_path(path, known, store, who)
            check_path(path.rpartition("@")[0] or path, known, store, who)
        elif (
            name == "task" and (value.endswith((".yaml", ".yml")) or is_there(value))
        ) or name == "folder":
            check_path(value, known, store, who)
        elif name == "trust_remote_code":
            check_trust(known, who)


def check_trust(known: Settings, who: Person) -> None:
    """Raise `AccessError` where a model's own code may not be run for a browser."""
    if not who.is_local and not known.trust_remote_code:
        raise AccessError(
            "The Python code that comes with a model is not run for these pages; whoever runs "
            f"them can allow it by `trust_remote_code` in {FILE}."
        )


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Every text in a document with its field's name, and every trust that is given."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, item in items:
        if isinstance(item, str) or (name == "trust_remote_code" and item):
            yield str(name), item
        elif isinstance(item, Mapping | list | tuple):
            yield from _fields(item)


# --- what a server may listen to ------------------------------------------------------------------


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches that address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_every(address: str) -> bool:
    """Whether it stands for all addresses of this machine."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def has_provider(files: Sequence[str | Path]) -> bool:
    """Whether Streamlit's secrets name an OpenID provider. `AccessError` for half a one."""
    for file in map(Path, files):
        if not file.is_file():
            continue
        try:
            auth = tomllib.loads(text_of(file)).get("auth")
        except (Malformed, tomllib.TOMLDecodeError):
            raise AccessError(f"{file} cannot be read as TOML; mend it.") from None
        if auth is None:
            continue
        sections = [auth, *(one for one in auth.values() if isinstance(one, dict))]
        whole = any(all(name in one for name in NEEDED) for one in sections)
        if not whole or "cookie_secret" not in auth or "redirect_uri" not in auth:
            raise AccessError(
                f"{file} has [auth] without all of redirect_uri, cookie_secret, "
                f"{', '.join(NEEDED)}; add them."
            )
        if importlib.util.find_spec("authlib") is None:
            raise AccessError(
                f"{file} asks for sign-in, and Authlib is not installed; run "
                '`pip install -e ".[auth]"`.'
            )
        return True
    return False


def check_address(address: str, known: Settings, provider: bool, words: str) -> None:
    """Raise `AccessError` for an address that others reach, unless they have to sign in.

    Or unless somebody says `WORDS`.
    """
    if known.proxy is not None and len(os.environ.get(SECRET, "")) < 16:
        raise AccessError(
            f"{FILE} trusts a proxy's headers, so set {SECRET} to what the proxy sends in "
            f"{known.proxy.secret_header}, 16 characters or more."
        )
    if is_loopback(address) or provider or known.proxy is not None or words == WORDS:
        return
    raise AccessError(
        f"At {short(address) or 'every address'} everyone on the network could run jobs as you; "
        f'set up sign-in (docs/security.md), or say --open-to-network "{WORDS}".'
    )


def options(address: str, port: int, hosts: Sequence[str], known: Settings) -> list[str]:
    """Streamlit's own options for a server of these pages, whatever other settings say.

    Only requests for the named hosts and from their own pages are answered.
    """
    names = [*LOCAL_NAMES, *hosts]
    if not is_loopback(address):
        if _is_every(address) and not hosts:
            raise AccessError(
                f"--address {address}: say by --host under which names browsers reach this machine."
            )
        names = names if _is_every(address) else [*names, address]
    chosen = {
        "server.address": address,
        "server.port": port,
        "server.enableXsrfProtection": "true",
        "server.enableCORS": "true",
        "server.enableStaticServing": "false",
        "server.enableAgentApi": "false",
        "browser.serverAddress": hosts[0] if hosts else "localhost",
    }
    if known.proxy is not None:
        mapping = {known.proxy.header: "email", known.proxy.secret_header: "proxy"}
        chosen["server.trustedUserHeaders"] = json.dumps(mapping)
    found = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    return found + [word for name in names for word in ("--server.allowedHosts", name)]
