"""Runs in the tree of what they were made from, and what people say of them from a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from laco.annotations import Annotation
from laco.cli import app
from laco.cli.terminal import speak
from laco.lineage import descendants, names, origins, tree
from laco.listing import Run
from laco.recipe import Compensate, Drop, ModelRef, Prune, Recipe
from laco.store import RunStore
from laco.wording import describe

MODEL = Recipe(model=ModelRef(path="org/tiny", revision="content:1", dtype="float32"))
DROPPED = MODEL.then(Drop(layers=(3,)))
PRUNED = DROPPED.then(Prune())
REPAIRED = PRUNED.then(Compensate())
OTHER = MODEL.then(Prune())
RECIPES = (MODEL, DROPPED, PRUNED, REPAIRED, OTHER)


def run(recipe: Recipe, created: float = 1.0) -> Run:
    return Run(recipe.key, recipe, None, created, (), describe(recipe))


def runs(*recipes: Recipe) -> list[Run]:
    """As the store lists them, the newest first."""
    return [run(recipe, float(place)) for place, recipe in enumerate(recipes)][::-1]


def outline(found) -> list[tuple[int, str]]:
    return [(node.depth, node.run.key) for node in found]


def test_each_run_stands_below_the_one_that_it_was_made_from():
    found = tree(runs(*RECIPES))
    assert outline(found) == [
        (0, MODEL.key),
        (1, DROPPED.key),
        (2, PRUNED.key),
        (3, REPAIRED.key),
        (1, OTHER.key),
    ]
    assert found[0].children == (DROPPED.key, OTHER.key)
    assert [node.label for node in found] == [
        *("tiny", "drop 1 layer (3)", "Wanda 50 %", "compensated (laco+)", "Wanda 50 %"),
    ]


def test_what_was_made_from_a_lost_run_hangs_higher_up():
    found = tree(runs(MODEL, REPAIRED))
    assert outline(found) == [(0, MODEL.key), (1, REPAIRED.key)]
    assert found[1].step == "drop 1 layer (3), Wanda 50 %, compensated (laco+)"
    assert outline(tree(runs(REPAIRED))) == [(0, REPAIRED.key)]
    assert tree(runs(REPAIRED))[0].label == describe(REPAIRED)


def test_a_results_folder_as_the_model_is_a_branch_of_it():
    on_it = Recipe(
        model=ModelRef(path=f"/store/artifacts/{DROPPED.key}", revision="content:2"),
        steps=(Prune(),),
    )
    found = tree(runs(MODEL, DROPPED, on_it))
    assert outline(found) == [(0, MODEL.key), (1, DROPPED.key), (2, on_it.key)]
    assert found[2].label == "Wanda 50 %"
    assert descendants(runs(MODEL, DROPPED, on_it), MODEL.key) == [DROPPED.key, on_it.key]


def test_what_is_put_away_is_left_out_and_its_descendants_are_not():
    said = {DROPPED.key: Annotation(archived=True), PRUNED.key: Annotation(name="The one")}
    found = tree(runs(*RECIPES), said, archived=False)
    assert outline(found)[:2] == [(0, MODEL.key), (1, PRUNED.key)]
    assert found[1].label == "The one"
    assert found[1].step == "drop 1 layer (3), Wanda 50 %"
    assert len(tree(runs(*RECIPES), said)) == len(RECIPES)


def test_descendants_come_after_what_they_were_made_from():
    assert descendants(runs(*RECIPES), DROPPED.key) == [PRUNED.key, REPAIRED.key]
    assert descendants(runs(*RECIPES), REPAIRED.key) == []
    assert descendants(runs(*RECIPES), "k1-nothing") == []


def test_names_are_peoples_own_and_told_apart():
    said = {PRUNED.key: Annotation(name="the one"), OTHER.key: Annotation(name="the one")}
    found = names(runs(*RECIPES), said)
    assert found[MODEL.key] == "tiny"
    assert found[PRUNED.key] == f"the one · {PRUNED.key[3:9]}"
    assert len(set(found.values())) == len(RECIPES)


@pytest.mark.parametrize(
    ("kept", "layers", "expected"),
    [
        ([], 3, [0, 1, 2]),
        ([[0, 1, 4, 5]], 4, [0, 1, 4, 5]),
        ([[0, 1, 4, 5], [0, 2, 3]], 3, [0, 4, 5]),
        ([[0, 1, 4, 5], [1, 2, 3], [2]], 1, [5]),
    ],
)
def test_layers_are_followed_back_to_the_original(kept, layers, expected):
    assert origins(kept, layers) == expected


def write(folder: Path) -> None:
    (folder / "w").write_text("weights")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A store with the five runs, each of them but the first with a file."""
    opened = RunStore(tmp_path / "store")
    for recipe in RECIPES:
        opened.save(recipe.key, recipe, [], write)
    return opened


def laco(store: RunStore, *words: str) -> int:
    return speak(app, [*words, "--store", str(store.folder)])


def test_a_terminal_shows_the_tree(store, capsys):
    assert laco(store, "runs", "--tree") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 2)[2].strip() for line in lines] == [
        *("tiny", "└─ drop 1 layer (3)", "└─ Wanda 50 %", "└─ compensated (laco+)"),
        "└─ Wanda 50 %",
    ]
    assert lines[3].index("└─") > lines[2].index("└─") > lines[1].index("└─")


def test_a_terminal_says_something_of_a_result_and_shows_it(store, capsys):
    words = ("--name", "The one", "--note", "for the talk", "--tag", "talk", "--tag", "best")
    assert laco(store, "annotate", PRUNED.key[:11], *words) == 0
    capsys.readouterr()
    assert laco(store, "annotate", PRUNED.key[:11], "--untag", "best", "--archive", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tags"] == ["talk"]
    assert laco(store, "show", PRUNED.key[:11], "--json") == 0
    document = json.loads(capsys.readouterr().out)
    told = {name: document[name] for name in ("name", "note", "tags", "archived", "exports")}
    assert told == {
        "name": "The one",
        "note": "for the talk",
        "tags": ["talk"],
        "archived": True,
        "exports": [],
    }
    assert laco(store, "runs", "--json") == 0
    listed = [one["key"] for one in json.loads(capsys.readouterr().out)]
    assert listed == [recipe.key for recipe in reversed(RECIPES) if recipe != PRUNED]
    assert laco(store, "runs", "--archived", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(RECIPES)
    assert laco(store, "annotate", PRUNED.key[:11], "--restore", "--name", "") == 0
    capsys.readouterr()
    assert laco(store, "runs", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["archived"]) for one in listed] == [("", False)] * len(RECIPES)


def test_a_terminal_removes_a_branch_once_it_is_agreed_to(store, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert laco(store, "store", "remove", PRUNED.key[:11], "--descendants") == 1  # nobody agrees
    assert REPAIRED.key[:11] in capsys.readouterr().err
    assert len(store.runs()) == len(RECIPES)
    assert laco(store, "store", "remove", PRUNED.key[:11], "--descendants", "--yes") == 0
    assert {one.key for one in store.runs()} == {MODEL.key, DROPPED.key, OTHER.key}
    assert laco(store, "store", "remove", DROPPED.key[:11]) == 0
    assert {one.key for one in store.runs()} == {MODEL.key, OTHER.key}
