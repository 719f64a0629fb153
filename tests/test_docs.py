"""Docs say what there is: every command, step, evaluation, analysis, preset, field and term."""

import re
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest

import laco
from laco.cli import COMMANDS
from laco.evaluations import Analysis, Evaluation
from laco.presets import presets
from laco.recipe import Merging, Spec, Step

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
DESCRIPTIONS: list[Any] = [
    kind for union in (Step, Evaluation, Analysis) for kind in get_args(get_args(union)[0])
]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "cache" / "README.md"])


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", read(path), re.MULTILINE)


def test_cli_page_is_what_help_says():
    assert read(DOCS / "cli.md") == GENERATE["cli_page"](), "run `make docs`"


def test_tables_of_fields_are_what_the_specs_say():
    page = read(DOCS / "recipe.md")
    assert GENERATE["filled"](page) == page, "run `make docs`"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_command_has_help_and_a_section(command):
    assert command.__doc__
    assert f"laco {command.__name__}" in headings(DOCS / "cli.md")


@pytest.mark.parametrize("kind", DESCRIPTIONS, ids=lambda kind: kind.__name__)
def test_every_description_has_a_section_and_its_fields(kind: type[Spec]):
    name = kind.model_fields["kind"].default
    page = read(DOCS / "recipe.md")
    assert name in headings(DOCS / "recipe.md")
    if set(kind.model_fields) - {"kind"}:
        assert f"<!-- fields of {kind.__name__} -->" in page
    assert kind.__name__ in laco.__all__


@pytest.mark.parametrize("kind", [*DESCRIPTIONS, laco.ModelRef, laco.Calibration])
def test_every_field_is_described(kind: type[Spec]):
    bare = [name for name, field in kind.model_fields.items() if not field.description]
    assert set(bare) <= {"kind"}
    assert kind.__doc__


def test_every_preset_is_described():
    page = read(DOCS / "recipe.md")
    assert all(f"| `{name}` |" in page for name in presets())


def test_every_merge_is_described():
    page = read(DOCS / "recipe.md")
    assert all(f"| `{name}` |" in page for name in get_args(Merging))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(page))
    local = [target for target in targets if "://" not in target]
    assert all((page.parent / target).exists() for target in local)


def test_version_is_one():
    text = read(ROOT / "pyproject.toml")
    assert f'version = "{laco.__version__}"' in text


def test_contributing_is_short():
    assert len(read(ROOT / "CONTRIBUTING.md").splitlines()) <= 100


def test_license_is_whole():
    text = read(ROOT / "LICENSE")
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text


def test_requirements_are_pinned():
    for path in ROOT.glob("requirements*.txt"):
        for line in read(path).splitlines():
            assert not line or line.startswith(("#", "-r ")) or "==" in line, f"{path.name}: {line}"


def test_ci_runs_check_and_test_and_nothing_else():
    lines = [line for line in read(ROOT / ".ci" / "run").splitlines() if line.startswith("make")]
    assert lines == ["make check test"]
