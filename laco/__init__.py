"""laco: compress language models by layers.

These names describe work and import nothing heavy. `laco.engine` carries it out. Start reading
at `recipe.py`.
"""

from laco.evaluations import (
    Divergence,
    Footprint,
    Metric,
    ParameterSimilarity,
    Perplexity,
    Request,
    Similarity,
    WhatIf,
)
from laco.recipe import Calibration, Collapse, Drop, Merge, ModelRef, Recipe, Spec

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Collapse",
    "Divergence",
    "Drop",
    "Footprint",
    "Merge",
    "Metric",
    "ModelRef",
    "ParameterSimilarity",
    "Perplexity",
    "Recipe",
    "Request",
    "Similarity",
    "Spec",
    "WhatIf",
    "__version__",
]
