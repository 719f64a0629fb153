"""Every family under every check: it works, or is refused with a reason that the card gave before.

`docs/families.md` is the table of the answers; `make docs` writes it anew, and a row that no longer
holds fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from laco.capabilities import CAPABILITIES, FAMILIES, NO_GROUPS, NO_WIDTH
from laco.errors import ArchitectureError
from laco.prune.widths import check_structured
from laco.recipe import Structured
from tests import families, tiny
from tests.families import BUILDERS, CHECKS, Subject

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "families.md"
MADE: dict[str, str] = {}  # family -> its row, as it was found


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print the table at the end; `pytest -s` shows it."""
    yield
    if MADE:
        print("", families.head(), *MADE.values(), sep="\n")


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "llama4_text"])
def test_groups_of_heads_go_from_layers_with_experts_too(family: str, tmp_path: Path) -> None:
    families.groups(Subject(family, tmp_path))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_whether_groups_of_heads_can_go_is_on_the_card(family: str, tmp_path: Path) -> None:
    subject = Subject(family, tmp_path)
    told = subject.card["capabilities"]["width"]["reason"]
    method = Structured(channels=0, groups=0.5)
    if family not in NO_GROUPS:
        check_structured(subject.lazy.stack, method)
        assert "groups of heads" not in told or "groups of heads can" in told
        return
    assert (
        f"groups of heads{' can go' if family not in NO_WIDTH else ''}: {NO_GROUPS[family]}" in told
    )
    with pytest.raises(ArchitectureError, match="groups of attention heads"):
        check_structured(subject.lazy.stack, method)


@pytest.mark.parametrize("family", BUILDERS)
def test_what_the_card_says_is_what_happens(family: str, tmp_path: Path) -> None:
    subject = Subject(family, tmp_path)
    card = subject.card["capabilities"]
    answers = {check: families.tried(subject, check) for check in CHECKS}
    for check, refusal in answers.items():
        told = card[CHECKS[check][0]]
        assert told["ok"] is (refusal is None), (check, told, refusal)
        assert told["reason"]
        if refusal is not None:
            assert refusal.endswith(".")
            assert "\n" not in refusal
    assert set(card) == set(CAPABILITIES)
    MADE[family] = families.row(subject, answers)
    assert MADE[family] in PAGE.read_text(encoding="utf-8").splitlines(), "run `make docs`"


def test_the_page_has_every_family_and_check() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert families.head().splitlines()[0] in lines
    rows = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert [name for name in rows if name in BUILDERS] == list(BUILDERS)


def test_every_capability_is_tried() -> None:
    assert {word for word, _ in CHECKS.values()} == set(CAPABILITIES)


def test_a_hybrid_is_edited_within_its_rhythm_only(tmp_path: Path) -> None:
    subject = Subject("jamba", tmp_path)  # Mamba, attention, Mamba, attention, ...
    assert "attn_layer_period" in subject.card["capabilities"]["collapse"]["reason"]
    stack = subject.load().layers
    assert all(stack.mergeable((i, i + 2)) for i in range(tiny.DEPTH - 1))
    with pytest.raises(ArchitectureError, match="attn_layer_period"):
        stack.keep([stack[i] for i in (0, 2, 3, 4, 5)], [0, 2, 3, 4, 5])
    stack.keep([stack[i] for i in (0, 1, 4, 5)], [0, 1, 4, 5])
    assert len(stack) == 4


def test_every_report_names_a_test_that_is_there() -> None:
    """Of the page's table of public reports."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name
