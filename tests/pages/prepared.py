"""A model folder and a store with runs in it, made by hand: what the pages show is known.

No torch: the folder holds a Llama config and small random weights written with numpy, and the
documents are smooth functions of the depths.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from laco import reference, upkeep
from laco.evaluations import (
    Degeneration,
    Footprint,
    Metric,
    ParameterSimilarity,
    Perplexity,
    Similarity,
    WhatIf,
    ZeroShot,
)
from laco.recipe import (
    Collapse,
    Compensate,
    Drop,
    Finetune,
    ModelRef,
    Prune,
    Recipe,
    Wanda,
    chained_key,
)
from laco.store import RunStore

LAYERS, HIDDEN, INNER, HEADS, VOCAB = 30, 16, 32, 2, 64
LINEARS = ("self_attn.q_proj", "mlp.down_proj")
QUESTIONS = 200
TASKS = {
    "hellaswag": "hellaswag",
    "arc_easy": "arc_easy@validation",
}  # with the split, if not stock
SKILL = {  # of those who answered: share of questions right
    "original": 0.55,
    "pruned": 0.37,
    "compensated": 0.53,
    "searched": 0.45,
}


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


def walk(kind: str, layers: int = LAYERS) -> dict:
    """What pruning or compensation would leave: errors that grow with depth, most in the last."""
    rows = []
    for layer in range(layers):
        grown = 0.002 * 1.2 ** (layer + 1)
        row = {
            "layer": layer,
            "original": layer,
            "error": grown if kind == "prune" else grown / 4,
            "cka": 1 - grown / (50 if kind == "prune" else 200),
            "zeros": 512,
            "weights": 1024,
            "seconds": 1.5,
            "notes": ["Damping was raised to 0.1."] if layer == 3 else [],
        }
        if kind == "compensate":
            row |= {
                "alone": grown,
                "alone_cka": 1 - grown / 50,
                "pruned": grown / 2,
                "ridge": grown / 3,
                "adam": grown / 4,
                "kept": "adam" if layer else "ridge",
                "damping": 0.3,
                "losses": [0.1, 0.05, 0.04],
            }
        else:
            row["linears"] = {"mlp.down_proj": {"weights": 512, "zeros": 256}}
        rows.append(row)
    report = {
        "layers": rows,
        "sparsity": 0.5,
        "shares": None,
        "curves": None,
        "judged_on": "held-out windows",
        "calibration": {"source": "bundled:wikipedia@calibration", "digest": "d3", "tokens": 8192},
    }
    if kind == "prune":
        levels = [0.3, 0.4, 0.5, 0.6, 0.7]
        report["shares"] = [0.4 + 0.2 * layer / (layers - 1) for layer in range(layers)]
        report["curves"] = {
            "levels": levels,
            "errors": [[level**2 / (layer + 1) for level in levels] for layer in range(layers)],
        }
    return report


def training() -> dict:
    """What LoRA would leave: the first of two epochs is kept."""
    return {
        "curve": [{"step": step, "loss": 3.5 - 0.1 * step} for step in range(1, 9)],
        "epochs": [
            {"epoch": 1, "step": 4, "train": 3.2, "held_out": 3.05, "seconds": 4.0},
            {"epoch": 2, "step": 8, "train": 2.9, "held_out": 3.1, "seconds": 4.0},
        ],
        "best_epoch": 1,
        "held_out_before": 3.4,
        "held_out_after": 3.06,
        "original_held_out": 2.8,
        "trained_parameters": 12345,
        "zeros_before": 15360,
        "zeros_after": 15360,
        "zeros_filled": 0,
        "notes": [],
        "seconds": 9.0,
        "calibration": {"source": "bundled:wikipedia@calibration", "digest": "d3", "tokens": 8192},
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


def answers(task: str, name: str, questions: int = QUESTIONS) -> list[dict]:
    """What a run would answer: who is better knows what others know, but for some luck."""
    hard = np.random.default_rng(len(task)).random(questions)
    draw = np.random.default_rng([len(task), *name.encode()])
    luck = 0.06 * draw.standard_normal(questions)
    found = []
    for place in range(questions):
        target = place % 4
        right = bool(hard[place] + luck[place] < SKILL[name])
        picked = target if right else (target + 1 + int(draw.integers(3))) % 4
        scores = [-20.0 - float(draw.random()) for _ in range(4)]
        scores[picked] += 4
        found.append(
            {
                "id": f"{task}-{place}",
                "question": f"Question {place} of {task}: which of the four <b>harbours</b> is it?",
                "choices": [f"the harbour {letter}{place}" for letter in "abcd"],
                "target": target,
                "picked": picked,
                "picked_norm": picked,
                "log_likelihoods": scores,
                "acc": int(right),
                "acc_norm": int(right),
            }
        )
    return found


def task_metrics(task: str, found: list[dict], leaked: int = 0) -> tuple[Metric, ...]:
    """What a task leaves: two metrics, the second of which papers report."""
    stock = "validation" if TASKS.get(task, task) == task else "test"
    details: dict[str, Any] = {
        "task": task,
        "split": "validation",
        "stock_split": stock,
        "version": "1.0",
    }
    details |= {"shots": 0, "limit": 200, "questions": len(found), "seed": 0, "data": "bundled"}
    details |= {"digest": "d4", "harness": "lm-eval 0.4.13", "shared_context": True}
    title = TASKS.get(task, task)
    if leaked:
        sources = ["bundled:wikipedia@calibration"]
        details["leak"] = {"items": leaked, "of": len(found), "sources": sources}
    share = sum(answer["acc"] for answer in found) / len(found)
    error = (share * (1 - share) / len(found)) ** 0.5
    return tuple(
        Metric(f"{name}[{title}]", share, "share", "higher", error, {**details, "main": main})
        for name, main in (("acc", False), ("acc_norm", True))
    )


def fill(folder: Path, model: Path) -> dict[str, str]:
    """A store with an original, a searched collapse, a drop, a pruned run and two that follow it.

    The keys by name; the newest run is `dropped`.
    """
    store = RunStore(folder)
    ref = reference.pin(ModelRef(path=str(model)), store.folder)
    original = Recipe(model=ref)
    searched = original.then(Collapse(target_layers=LAYERS - 3))
    pruned = original.then(Prune(allocation="sensitivity"))
    recipes = {
        "original": original,
        "pruned": pruned,
        "compensated": pruned.then(Compensate()),
        "tuned": pruned.then(Finetune()),
        "searched": searched,
        "dropped": original.then(Drop(layers=(3, 4))),
    }
    reports = {
        "pruned": walk("prune"),
        "compensated": walk("compensate"),
        "tuned": training(),
        "searched": plan(),
        "dropped": {"removed": [3, 4]},
    }
    measured = {
        "original": (19.5, 0.5, 32),
        "pruned": (31.0, 0.8, 32),
        "compensated": (23.5, 0.6, 32),
        "tuned": (25.0, 0.6, 32),
        "searched": (27.5, 0.7, 32),
        "dropped": (20.1, 0.6, 16),
    }
    store.add_model(original.key, original)
    for name, recipe in recipes.items():
        report = reports.get(name, {})
        left = LAYERS - len(report.get("removed", ()))
        if name != "original":
            steps = [_step(recipe.steps[-1].kind, report)]
            store.save(recipe.key, recipe, steps, lambda place, left=left: _write(place, left))
        value, stderr, windows = measured[name]
        found = metrics(value, left, stderr, windows)
        store.add_metrics(recipe.key, Perplexity(), found[:1])
        store.add_metrics(recipe.key, Footprint(), found[1:])
        for task in TASKS if name in SKILL else ():
            given = answers(task, name)
            leaked = 12 if (name, task) == ("compensated", "hellaswag") else 0
            told = task_metrics(task, given, leaked)
            store.add_metrics(recipe.key, ZeroShot(task=task, pinned="d4"), told, given)
    store.add_analysis(original.key, Similarity(), similarity())
    store.add_analysis(original.key, ParameterSimilarity(), parameter_similarity())
    store.add_analysis(original.key, WhatIf(), what_if())
    store.add_analysis(searched.key, Similarity(), similarity(LAYERS - 3))
    return {name: recipe.key for name, recipe in recipes.items()}


def crowd(folder: Path, model: Path, runs: int = 500, answered: int = 8) -> None:
    """A store with so many runs of one model and 15 numbers of each, and more of the same kind.

    The original and the newest `answered` runs have answers to every task too. The others stand in
    the index alone, which is all that a list of runs is read from.
    """
    tasks = ("hellaswag", "piqa", "boolq", "arc_easy", "winogrande")
    store = RunStore(folder)
    original = Recipe(model=reference.pin(ModelRef(path=str(model)), store.folder))
    store.add_model(original.key, original)
    given = {task: answers(task, "original") for task in tasks}
    with store.index.transaction() as index:
        for place in range(runs - 1):
            recipe = original.then(Prune(method=Wanda(sparsity=(place + 1) / (runs + 1))))
            found = metrics(20 + place / 10, LAYERS, 0.5)
            groups = [(Perplexity(), found[:1]), (Footprint(), found[1:])]
            groups += [
                (ZeroShot(task=task, pinned="d4"), task_metrics(task, given[task]))
                for task in tasks
            ]
            upkeep.index_run(index, recipe.key, recipe.model_dump_json(), time.time())
            for spec, numbers in groups:
                documents = [metric.document() for metric in numbers]
                upkeep.index_metrics(index, recipe.key, chained_key(recipe.key, spec), documents)
    for run in [run for run in store.runs(metrics=False) if run.recipe.steps][:answered]:
        store.add_metrics(run.key, Degeneration(), [Metric("degenerate", 0.0, "share", "lower")])
        for task in tasks:
            spec = ZeroShot(task=task, pinned="d4")
            store.add_metrics(run.key, spec, task_metrics(task, given[task]), given[task])
    for spec, numbers in (
        (Perplexity(), metrics(19.5, LAYERS, 0.5)[:1]),
        (Footprint(), metrics(19.5, LAYERS, 0.5)[1:]),
    ):
        store.add_metrics(original.key, spec, numbers)
    for task in tasks:
        spec = ZeroShot(task=task, pinned="d4")
        store.add_metrics(original.key, spec, task_metrics(task, given[task]), given[task])
    store.add_analysis(original.key, Similarity(), similarity())
    store.close()


def _step(kind: str, report: dict) -> dict:
    return {
        "kind": kind,
        "seconds": 10.0,
        "cached": False,
        "peak_bytes": 10**9,
        "report": report,
    }


def _write(place: Path, layers: int) -> None:
    model_folder(place, layers)
