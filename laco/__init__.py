"""laco: compress language models by layers.

These names describe work and import nothing heavy; each is fetched when it is first used, so that
`laco --help` need not wait for pydantic. `laco.engine` carries the work out. Start reading at
`recipe.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laco.evaluations import (
        Degeneration,
        Divergence,
        Export,
        Footprint,
        Latency,
        Metric,
        ParameterSimilarity,
        Perplexity,
        Request,
        Similarity,
        WeightChange,
        WhatIf,
        ZeroShot,
    )
    from laco.recipe import (
        Calibration,
        Collapse,
        Compensate,
        Drop,
        Finetune,
        Magnitude,
        Merge,
        ModelRef,
        Prune,
        Recipe,
        SparseGPT,
        Spec,
        Structured,
        Wanda,
    )

__version__ = "0.1.0"

__all__ = [
    "Calibration",
    "Collapse",
    "Compensate",
    "Degeneration",
    "Divergence",
    "Drop",
    "Export",
    "Finetune",
    "Footprint",
    "Latency",
    "Magnitude",
    "Merge",
    "Metric",
    "ModelRef",
    "ParameterSimilarity",
    "Perplexity",
    "Prune",
    "Recipe",
    "Request",
    "Similarity",
    "SparseGPT",
    "Spec",
    "Structured",
    "Wanda",
    "WeightChange",
    "WhatIf",
    "ZeroShot",
    "__version__",
]

_EVALUATIONS = (
    "Degeneration",
    "Divergence",
    "Export",
    "Footprint",
    "Latency",
    "Metric",
    "ParameterSimilarity",
    "Perplexity",
    "Request",
    "Similarity",
    "WeightChange",
    "WhatIf",
    "ZeroShot",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'laco' has no attribute {name!r}")
    home = "laco.evaluations" if name in _EVALUATIONS else "laco.recipe"
    return getattr(import_module(home), name)
