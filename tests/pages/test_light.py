"""The pages hold no model: importing them loads neither torch nor transformers."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBE = """
import importlib, json, pathlib, pkgutil, sys
import laco.ui
for module in pkgutil.iter_modules(laco.ui.__path__):
    importlib.import_module(f"laco.ui.{module.name}")
from streamlit.testing.v1 import AppTest
at = AppTest.from_file("app.py", default_timeout=60).run()
for page in sorted(pathlib.Path("pages").glob("*.py")):
    name = page.stem
    at.switch_page(f"pages/{name}.py").run()
    assert not at.exception, at.exception
heavy = [name for name in ("torch", "transformers", "lm_eval", "datasets") if name in sys.modules]
print(json.dumps({"heavy": heavy, "ui": "laco.ui.plans" in sys.modules}))
"""


def test_pages_load_no_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "LACO_STORE": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"heavy": [], "ui": True}


def test_only_the_pages_and_their_parts_import_streamlit():
    for file in (ROOT / "laco").rglob("*.py"):
        if "ui" not in file.relative_to(ROOT / "laco").parts:
            text = file.read_text()
            assert "import streamlit" not in text, file
            assert "from streamlit" not in text, file
