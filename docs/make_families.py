"""Write the table of `families.md` anew: every family under every check, tried on tiny models.

`make docs` runs it (a minute or two); `tests/test_families.py` fails when a row no longer holds.
Prose and the table of reports in the page are written by hand.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from transformers.utils import logging

FOLDER = Path(__file__).parent
TABLE = re.compile(r"(<!-- families by checks -->\n).*?(<!-- end -->)", re.DOTALL)

sys.path.insert(0, str(FOLDER.parent))
from tests import families  # noqa: E402


def table() -> str:
    """The whole table."""
    rows = [families.head()]
    for family in families.BUILDERS:
        with tempfile.TemporaryDirectory() as room:
            subject = families.Subject(family, Path(room))
            answers = {check: families.tried(subject, check) for check in families.CHECKS}
            rows.append(families.row(subject, answers))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    page = FOLDER / "families.md"
    made = table()
    text = page.read_text(encoding="utf-8")
    page.write_text(TABLE.sub(lambda found: found[1] + made + found[2], text), encoding="utf-8")
