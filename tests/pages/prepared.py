"""A model folder and a store with runs in it, made by hand: what the pages show is known.

No torch: the folder holds a Llama config and small random weights written with numpy, and the
documents are smooth functions of the depths.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from laco import reference
from laco.evaluations import (
    Footprint,
    Metric,
    ParameterSimilarity,
    Perplexity,
    Similarity,
    WhatIf,
)
from laco.recipe import Collapse, Drop, ModelRef, Recipe
from laco.store import RunStore

LAYERS, HIDDEN, INNER, HEADS, VOCAB = 30, 16, 32, 2, 64
LINEARS = ("self_attn.q_proj", "mlp.down_proj")


def model_folder(folder: Path, layers: int = LAYERS) -> Path:
    """A Llama of `layers` layers as a folder of config, tokenizer file and safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        place = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            shapes[f"{place}.self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            shapes[f"{place}.mlp.{name}_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{place}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{place}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{place}.post_attention_layernorm.weight"] = (HIDDEN,)
    draw = np.random.default_rng(0)
    tensors = {
        name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def similarity(layers: int = LAYERS) -> dict:
    """The document of a model whose middle layers are alike and whose ends are not."""
    depth = np.arange(layers + 1)
    position = depth + 4.0 * (depth > 1) + 5.0 * (depth > layers - 2)
    apart = np.abs(position[:, None] - position[None, :])
    cosine = np.exp(-apart / (0.8 * layers))
    influence = 1 - np.diagonal(cosine, 1)
    shards = [influence * (1 + 0.04 * shard) for shard in range(4)]
    spread = 0.01 * (1 - cosine)
    measures = {
        "cosine": cosine,
        "angular": np.arccos(np.clip(cosine, -1, 1)) / np.pi,
        "relative_l2": np.sqrt(np.maximum(2 - 2 * cosine, 0)),
        "cka": cosine**0.5,
    }
    return {
        "measures": {name: values.tolist() for name, values in measures.items()},
        "spread": {name: spread.tolist() for name in measures},
        "influence": influence.tolist(),
        "influence_spread": np.std(shards, axis=0).tolist(),
        "influence_shards": [shard.tolist() for shard in shards],
        "rank_uncertain": [4 <= layer <= 8 for layer in range(layers)],
        "shards": 4,
        "depths": layers + 1,
        "layers": layers,
        "tokens": 4080,
        "tokens_counted": "skip_first",
        "seconds": 3.2,
        "source": "bundled:wikipedia@calibration",
        "digest": "d1",
        "warnings": [],
    }


def parameter_similarity(layers: int = LAYERS) -> dict:
    """Every linear the more alike, the nearer the layers."""
    apart = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers)))
    cosine = np.where(apart == 0, 1.0, 0.2 / np.maximum(apart, 1))
    return {
        "linears": list(LINEARS),
        "cosine": {name: cosine.tolist() for name in LINEARS},
        "relative_l2": {name: (1.4 * (1 - cosine)).tolist() for name in LINEARS},
        "layers": layers,
        "seconds": 1.0,
    }


def what_if(layers: int = LAYERS) -> dict:
    """Cheap in the middle, dear at both ends, dearer the longer; nothing past the last layer."""
    starts, lengths = list(range(layers - 1)), list(range(2, 9))
    kl = [
        [
            None
            if start + length > layers
            else 0.02 * length**2 * (1 + ((start - layers / 2) / 5) ** 2)
            for start in starts
        ]
        for length in lengths
    ]
    cosine = [[None if cell is None else float(np.exp(-cell)) for cell in row] for row in kl]
    return {
        "starts": starts,
        "lengths": lengths,
        "cosine": cosine,
        "kl": kl,
        "layers": layers,
        "merge": "drop",
        "seconds": 12.0,
        "tokens": 512,
        "source": "bundled:wikipedia@calibration",
        "digest": "d1",
    }


def plan(layers: int = LAYERS) -> dict:
    """What a best-first search to three layers fewer would leave."""
    candidates = [
        {
            "step": step,
            "start": start,
            "stop": start + 2,
            "score": 0.05 * (step + 1) * (1 + abs(start - 12 - step) / 4),
            "accepted": start == 12 + step,
            "exact": start % 3 != 0 or start == 12 + step,
        }
        for step in range(3)
        for start in range(layers - 1 - step)
    ]
    return {
        "spans": [[12, 15], [20, 22]],
        "kept": [layer for layer in range(layers) if layer not in (13, 14, 21)],
        "removed": [13, 14, 21],
        "candidates": candidates,
        "objective": "kl",
        "order": "best_first",
        "threshold": None,
        "seconds_search": 9.5,
        "layers_before": layers,
        "layers_after": layers - 3,
        "merge": "drop",
        "parameters": "all",
    }


def metrics(perplexity: float, layers: int, stderr: float, windows: int = 32) -> tuple[Metric, ...]:
    """What a perplexity and a footprint leave."""
    details = {"source": "bundled:wikipedia@heldout", "digest": "d2", "window": 512}
    details |= {"stride": 512, "windows": windows, "bos": False, "tokens_scored": 16352}
    parameters = 28_000_000 + 3_540_000 * layers
    return (
        Metric(
            "perplexity[bundled:wikipedia@heldout]",
            perplexity,
            "",
            "lower",
            stderr=stderr,
            details=details,
        ),
        Metric("layers", layers, "", "lower"),
        Metric("parameters", parameters, "", "lower"),
        Metric("bytes", 4 * parameters, "bytes", "lower"),
    )


def fill(folder: Path, model: Path) -> dict[str, str]:
    """A store with an original, a searched collapse and a drop; the keys of the three by name."""
    store = RunStore(folder)
    ref = reference.pin(ModelRef(path=str(model)), store.folder)
    original = Recipe(model=ref)
    searched = original.then(Collapse(target_layers=LAYERS - 3))
    dropped = original.then(Drop(layers=(3, 4)))
    store.add_model(original.key, original)
    for recipe, report in ((searched, plan()), (dropped, {"removed": [3, 4]})):
        steps = [
            {
                "kind": recipe.steps[-1].kind,
                "seconds": 10.0,
                "cached": False,
                "peak_bytes": 10**9,
                "report": report,
            }
        ]
        left = LAYERS - len(report["removed"])
        store.save(recipe.key, recipe, steps, lambda place, left=left: _write(place, left))
    for recipe, value, layers, stderr, windows in (
        (original, 19.5, 30, 0.5, 32),
        (searched, 27.5, 27, 0.7, 32),
        (dropped, 20.1, 28, 0.6, 16),
    ):
        found = metrics(value, layers, stderr, windows)
        store.add_metrics(recipe.key, Perplexity(), found[:1])
        store.add_metrics(recipe.key, Footprint(), found[1:])
    store.add_analysis(original.key, Similarity(), similarity())
    store.add_analysis(original.key, ParameterSimilarity(), parameter_similarity())
    store.add_analysis(original.key, WhatIf(), what_if())
    store.add_analysis(searched.key, Similarity(), similarity(LAYERS - 3))
    return {"original": original.key, "searched": searched.key, "dropped": dropped.key}


def _write(place: Path, layers: int) -> None:
    model_folder(place, layers)
