"""How long the server works on a page when the store holds 500 runs with 15 numbers each.

Pages are run through Streamlit's AppTest, from `app.py`, by a new visitor each time, in one
process, as on a server that has been up for a while; the first visit is told as well. Counted is
the time in which the script runs: neither what AppTest adds nor what the browser then draws.

Last line: `pages RATIO`, half a second over the slowest page's median (at least 1 is asked for).
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from streamlit.runtime.scriptrunner import script_runner  # noqa: E402
from streamlit.runtime.scriptrunner.exec_code import (  # noqa: E402
    exec_func_with_error_handling as carry_out,
)
from streamlit.testing.v1 import AppTest  # noqa: E402

from tests.pages import prepared  # noqa: E402

SECONDS = 0.5
RUNS = 500
APP = str(ROOT / "app.py")


def seconds(page: str) -> float:
    """How long the scripts of `app.py` and of the page run for a new visitor."""
    visit = AppTest.from_file(APP, default_timeout=60)
    visit.switch_page(f"pages/{page}.py")
    taken: list[float] = []

    def timed(*given: Any) -> Any:
        began = time.perf_counter()
        try:
            return carry_out(*given)
        finally:
            taken.append(time.perf_counter() - began)

    with patch(f"{script_runner.__name__}.{carry_out.__name__}", timed):
        visit.run()
    if visit.exception:
        raise SystemExit(f"{page}: {visit.exception[0].value}")
    return sum(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer visits")
    visits = 5 if parser.parse_args().quick else 15
    logging.disable(logging.WARNING)  # of Streamlit, that no browser is there
    pages = sorted(path.stem for path in (ROOT / "pages").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        model = prepared.model_folder(Path(folder) / "my-model")
        prepared.crowd(Path(folder) / "store", model, RUNS)
        os.environ["LACO_STORE"] = str(Path(folder) / "store")
        seconds("home")  # the frame's own first run
        medians: dict[str, float] = {}
        for page in pages:
            first = seconds(page)
            medians[page] = statistics.median(seconds(page) for _ in range(visits))
            print(f"{page}: {medians[page]:.3f} s, at first {first:.3f} s, {RUNS} runs")
    print(f"pages {SECONDS / max(medians.values()):.2f}")


if __name__ == "__main__":
    main()
