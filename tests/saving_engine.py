"""Stands where the engine is: saves a run with a metric and an analysis, and tells the index."""

from laco import Metric, Perplexity, Similarity
from laco.recipe import ModelRef, Recipe


def run(_request, store, _context):
    recipe = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
    store.add_model(recipe.key, recipe)
    store.add_metrics(recipe.key, Perplexity(), [Metric("perplexity[x]", 12.5, "", "lower")])
    store.add_analysis(recipe.key, Similarity(), {"matrix": [[1.0]]})
    return {"key": recipe.key, "index": str(store.index.path)}
