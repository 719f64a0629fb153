"""The exceptions that a user may meet, drawn as a tree.

Each message is one sentence: what is wrong, where, and what to do. Anything that is not a
`LacoError` is a bug, and is shown as a traceback. Next: `recipe.py`.

    LacoError
    ├─ RecipeError         the description cannot be carried out
    ├─ ModelError          a model that is missing, broken, or not a causal language model
    ├─ ArchitectureError   no layout for this kind of model, or an edit that it cannot take
    ├─ CalibrationError    a text source that is missing or too short
    ├─ NumericalError      a number that is not finite, with the place where it arose
    ├─ StoreError          an artifact that is incomplete or does not match its key
    ├─ ExportError         a folder that was not exported, with the checks it went through
    ├─ AccessError         someone who may not do that, or a path that a browser may not name
    └─ JobError            a job that ended early
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LacoError(Exception):
    """Something that the user can mend."""


class RecipeError(LacoError):
    """The description cannot be carried out."""


class ModelError(LacoError):
    """The model is missing, broken, or not a causal language model."""


class ArchitectureError(LacoError):
    """The architecture is unknown, or cannot take this edit."""


class CalibrationError(LacoError):
    """The text source is missing or too short."""


class NumericalError(LacoError):
    """A number is not finite; the message names the place."""


class StoreError(LacoError):
    """An artifact is incomplete, or does not match its key."""


class ExportError(LacoError):
    """Nothing was exported; `checks` has what was found, as `laco export --json` shows it."""

    def __init__(self, message: str, checks: Sequence[Mapping[str, Any]] = ()):
        super().__init__(message)
        self.checks = [dict(check) for check in checks]


class AccessError(LacoError):
    """Whoever asks may not do that; the message says who can."""


class JobError(LacoError):
    """A job ended early."""


class Cancelled(Exception):  # noqa: N818 - a wish of the user, not an error
    """Someone asked for the work to stop."""
