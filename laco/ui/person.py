"""Who looks at this page, and whether they may start anything.

Streamlit signs people in by an OpenID provider, or takes a reverse proxy's word for who they are;
what they may do is in `laco/access.py`. Next: `session.py`, which asks here before a job is queued.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Any

import streamlit as st

from laco import access
from laco.access import LOCAL, Person, Settings
from laco.errors import AccessError
from laco.ui import places
from laco.ui.plain import plain
from laco.ui.stored import store


def settings() -> Settings:
    """The settings of these pages' store. Raises `AccessError`."""
    return access.settings(store().folder)


def person() -> Person:
    """Whoever looks at this page. Raises `AccessError` for who has to sign in, or may not come."""
    known, provider = settings(), has_provider()
    access.check_address(address(), known, provider, os.environ.get(access.OPENED, ""))
    told = claims()
    if provider:
        if not told.get("is_logged_in"):
            raise AccessError("These pages are for those who sign in.")
        if not told.get("email") or told.get("email_verified") is False:
            raise AccessError("Your account gives no verified e-mail address; take another.")
        return access.person(known, str(told["email"]))
    if known.proxy is not None:
        secret = os.environ[access.SECRET]
        if not hmac.compare_digest(str(told.get("proxy") or "").encode(), secret.encode()):
            raise AccessError("These pages are reached through their proxy only.")
        if not told.get("email"):
            raise AccessError("The proxy names nobody; sign in there.")
        return access.person(known, str(told["email"]))
    return LOCAL


def claims() -> Mapping[str, Any]:
    """What Streamlit knows of the visitor: from the provider's cookie, or the proxy's headers."""
    return st.user.to_dict()


def address() -> str:
    """What this server listens to; Streamlit's own default is every address."""
    return st.get_option("server.address") or ""


def has_provider() -> bool:
    """Whether sign-in by an OpenID provider is set up."""
    return access.has_provider(st.get_option("secrets.files"))


def enter() -> Person:
    """Whoever looks; where they have to sign in first, the way to that, and the end of the page."""
    try:
        return person()
    except AccessError as error:
        st.error(plain(str(error)))
        if has_provider():
            if claims().get("is_logged_in"):
                st.button("Log out", on_click=st.logout)
            else:
                st.button("Log in", type="primary", on_click=st.login)
        st.stop()


def sidebar(who: Person) -> None:
    """Who is signed in, and the way out."""
    if who.is_local:
        return
    st.caption("Signed in")
    st.text(f"{who.name}, {who.role}")
    if claims().get("is_logged_in"):
        st.button("Log out", on_click=st.logout)


def start_button(
    label: str, place: Any = st, disabled: bool = False, sends: bool = True, **options: Any
) -> bool:
    """A button that starts or stops work; a viewer sees it, and why it can't be pressed.

    One that `sends` a job has the choice of where that runs in front of it, where there is one.
    """
    if not person().may_run:
        return place.button(label, disabled=True, **{**options, "help": access.VIEWING})
    if sends:
        places.offer(place, options.get("key", label))
    return place.button(label, disabled=disabled, **options)


def owner_button(label: str, owner: str, disabled: bool = False, **options: Any) -> bool:
    """A button that changes what belongs to `owner`; others see it, and why it can't be pressed."""
    who = person()
    try:
        access.require_owner(who, owner, "result")
    except AccessError as error:
        return st.button(label, disabled=True, **{**options, "help": plain(str(error))})
    return st.button(label, disabled=disabled, **options)
