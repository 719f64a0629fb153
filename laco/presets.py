"""Named steps with a note on what they give and cost, read from `recipes/*.json`.

A preset is a recipe without a model. It knows no method; the steps are those of `recipe.py`.
Next: `recipes/`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from laco.errors import RecipeError
from laco.recipe import ModelRef, Recipe, Spec, Step, complaints

FOLDER = Path(__file__).parent.parent / "recipes"


class Preset(Spec):
    """Steps under a name, for any model."""

    name: str = Field(description="The file's name without .json")
    title: str = Field(description="A few words for a list")
    note: str = Field(description="Where it comes from, what it gives and what it costs")
    steps: tuple[Step, ...] = Field(min_length=1)

    def recipe(self, model: ModelRef) -> Recipe:
        """The preset's steps on that model."""
        return Recipe(model=model, steps=self.steps)


def presets(folder: Path = FOLDER) -> dict[str, Preset]:
    """Every preset by name, in order of name. Raises `RecipeError` naming a broken file."""
    found: dict[str, Preset] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            preset = Preset.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise RecipeError(
                f"The preset {path.name} cannot be read: {complaints(error)}."
            ) from None
        if preset.name != path.stem:
            raise RecipeError(f"The preset {path.name} calls itself {preset.name}; rename one.")
        found[preset.name] = preset
    return found
