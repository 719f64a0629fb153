"""Change the weights of a model on disk in one walk: each layer read, pruned, compensated, written.

Two streams of hidden states go through the depth: the original's, and that of the changed model,
whose layers run as they will be stored. Of either model, one layer at a time has weights; the
streams lie in host memory. A walk that was stopped goes on at the next layer. What happens to a
layer is in `prune/` and `compensate.py`; how layers lie in files, in `lazy.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laco.compensate import Task, compensate, relative_errors
from laco.context import Context
from laco.disk import read_json, write_json
from laco.lazy import LayerWriter, LazyModel
from laco.measures import linear_cka
from laco.prune import prunable
from laco.prune.structured import Narrowing
from laco.prune.zeroing import Zeroing
from laco.ranks import Ranks
from laco.recipe import Compensate, Prune, Structured

STATE = "walk.json"  # in the writer's folder: what is known of each layer that is written
PASS_TOKENS = 1024  # on the device at a time, where no step of Adam says how many
CKA_TOKENS = 512


@dataclass(frozen=True)
class Texts:
    """Windows [windows, length]; the first `training` are learned from, the others judge.

    Where there are no others, errors are told of the ones that were learned from.
    """

    tokens: Tensor
    training: int

    @property
    def judging(self) -> slice:
        """Which windows errors are told of."""
        return slice(self.training if self.training < len(self.tokens) else 0, None)

    def share(self, ranks: Ranks) -> Texts:
        """The part of one of several processes, of either kind of windows."""
        learned = ranks.share(self.tokens[: self.training])
        judging = ranks.share(self.tokens[self.training :])
        return Texts(torch.cat([learned, judging]), len(learned))


@dataclass(frozen=True)
class Side:
    """One of the two models, run layer by layer, some windows at a time."""

    model: LazyModel
    batch: int  # windows

    def run(self, index: int, layer: nn.Module, hidden: Tensor) -> Tensor:
        """`layer`, called as the model calls its layer `index`, on [batch, length, hidden]."""
        return self.model.tape(len(hidden), hidden.shape[1]).call(layer, index, hidden)

    @torch.no_grad()
    def outputs(self, index: int, layer: nn.Module, states: Tensor) -> Iterator[Tensor]:
        """What the layer makes of states on the host, a micro-batch at a time, in its own dtype."""
        dtype = next(layer.parameters()).dtype
        for part in states.split(self.batch):
            yield self.run(index, layer, part.to(self.model.device, dtype))

    def prepare(self, length: int, *counts: int) -> None:
        """Record how layers are called for so many windows at a time, before anyone watches one."""
        for count in counts:
            for size in {min(count, self.batch), count % self.batch} - {0}:
                self.model.tape(size, length)

    def feed(self, index: int, layer: nn.Module, states: Tensor) -> None:
        """Run the layer for those who watch it."""
        for _ in self.outputs(index, layer, states):
            pass

    def advance(self, index: int, layer: nn.Module, states: Tensor) -> None:
        """Put the layer's output in the place of its input, on the host."""
        outputs = self.outputs(index, layer, states)
        for part, output in zip(states.split(self.batch), outputs, strict=True):
            part.copy_(output)

    def pass_through(self, layers: range, *streams: Tensor) -> None:
        """Take streams through layers of the model as it is on disk."""
        for index in layers:
            layer = self.model.read(index)
            for states in streams:
                self.advance(index, layer, states)
            self.model.release(index)


def rework(
    student: LazyModel,
    teacher: LazyModel,
    ends: Sequence[int],
    step: Prune | Compensate,
    texts: Texts,
    writer: LayerWriter,
    context: Context,
) -> dict[str, Any]:
    """Walk `student`, changing each layer by `step`; all layers lie in `writer` afterwards.

    `ends[k]` is the last layer of `teacher` that layer k of the student stands for: what that one
    gives, layer k should give. Returns `{"layers": [row], "sparsity", "shares", "curves", "fields",
    "judged_on"}`, fields being what the config has to say of narrower layers; the rows so far are
    published after each layer. A row's errors are relative, of the judging windows: `alone` of the
    student as it came, `error` of what is stored, with their CKA. `LacoError`s name the layer; what
    was written before stays, and another call goes on there.
    """
    prune = step if isinstance(step, Prune) else None
    repair = step if isinstance(step, Compensate) else step.compensation
    ranks, learned = context.ranks, texts.training
    texts = texts.share(ranks)
    pruning = None if prune is None else _pruning(prune, student, ranks)
    length, held_out = texts.tokens.shape[1], len(texts.tokens) - texts.training
    batch = max(1, (repair.batch_tokens if repair else PASS_TOKENS) // length)
    ours, theirs = Side(student, batch), Side(teacher, batch)
    for side in (ours, theirs):
        side.prepare(length, len(texts.tokens), texts.training, held_out, 1)
    states, original = student.inputs(texts.tokens), teacher.inputs(texts.tokens)
    alone = states[texts.judging].clone() if prune is None else None
    held = read_json(writer.folder / STATE) or {"layers": [], "decided": None}
    rows: list[dict[str, Any]] = held["layers"]
    del rows[next((i for i in range(len(rows)) if not writer.has(i)), len(rows)) :]
    if pruning is not None:
        share = 0.3 if pruning.studies and held["decided"] is None else 0.0  # of the work
        context, before = context.part(share, 1.0), context.part(0.0, share)
        held["decided"] = _studied(pruning, held["decided"], ours, texts, states, before)
    done = 0  # layers of the original that have been passed
    for index in range(len(student.stack)):
        part = context.part(index / len(student.stack), (index + 1) / len(student.stack))
        place = f"layer {index}"
        part.step(0.0, f"{place} of {len(student.stack)}")
        began = time.perf_counter()
        target = _target(theirs, range(done, ends[index] + 1), states, original, repair)
        done = ends[index] + 1
        layer = student.read(index, torch.float32)
        if alone is not None:
            ours.advance(index, layer, alone)
        if index < len(rows):
            layer = _put_back(student, pruning, index, writer)
            ours.advance(index, layer.to(student.dtype), states)
        else:
            row: dict[str, Any] = {"layer": index, "original": ends[index], "notes": []}
            if pruning is not None:
                feed = partial(ours.feed, index, layer, states[: texts.training])
                layer, said = pruning.prune(index, layer, feed, place)
                row |= said
            if layer is not student.stack[index]:
                student.release(index)  # the wide one, in whose place it stands
            if repair is not None:
                run = partial(ours.run, index)
                task = Task(layer, run, states, target, texts.training, batch, student.device)
                task.ranks, task.learned = ranks, learned
                fit = compensate(task, repair, repair.seed + index, place, part)
                row |= {**asdict(fit), "notes": row["notes"] + fit.notes}
            if ranks.leads:
                writer.put(index, layer)
            ours.advance(index, layer.to(student.dtype), states)
            judged = ranks.whole(original[texts.judging])
            row |= {} if alone is None else _told("alone", ranks.whole(alone), judged)
            row |= _told("error", ranks.whole(states[texts.judging]), judged)
            rows.append({**row, **_zeros(layer), "seconds": time.perf_counter() - began})
            if ranks.leads:
                write_json(writer.folder / STATE, held)
        student.release(index)
        part.publish({"layers": rows, "of": len(student.stack)})
    zeros, weights = (sum(row[name] for row in rows) for name in ("zeros", "weights"))
    return {
        "layers": rows,
        **(held["decided"] or {}),
        "fields": dict(pruning.fields) if pruning else {},
        "sparsity": zeros / weights,
        "judged_on": "held-out windows" if held_out else "the windows learned from",
    }


def _pruning(prune: Prune, student: LazyModel, ranks: Ranks) -> Zeroing | Narrowing:
    """What prunes the layers; its errors come before any work."""
    if isinstance(prune.method, Structured):
        return Narrowing(student.stack, prune.method)
    return Zeroing(student.stack, prune, ranks)


def _studied(
    pruning: Zeroing | Narrowing,
    decided: dict[str, Any] | None,
    ours: Side,
    texts: Texts,
    states: Tensor,
    context: Context,
) -> dict[str, Any]:
    """Let the method see the whole model first, if it has to; what it decided, to be kept."""
    if isinstance(pruning, Narrowing):
        pruning.study(ours.model, texts.tokens[: texts.training], ours.batch, context)
        return {}
    if decided is not None:
        pruning.shares, pruning.curves = decided["shares"], decided["curves"]
    elif pruning.studies:
        passing = states[: texts.training].clone()

        def layers() -> Iterator[tuple[int, nn.Module]]:
            for index in range(len(ours.model.stack)):
                layer = ours.model.read(index, torch.float32)
                yield index, layer
                ours.advance(index, layer.to(ours.model.dtype), passing)
                ours.model.release(index)

        pruning.study(layers(), lambda i, layer: ours.outputs(i, layer, passing), context)
    return {"shares": pruning.shares, "curves": pruning.curves}


def _put_back(
    student: LazyModel, pruning: Zeroing | Narrowing | None, index: int, writer: LayerWriter
) -> nn.Module:
    """A layer as it was written before the walk was stopped, in float32."""
    tensors = writer.read_back(index)
    if isinstance(pruning, Narrowing):
        student.release(index)
        return pruning.layer(index, tensors).to(student.device)
    layer = student.stack[index]
    layer.load_state_dict(tensors, strict=False)
    return layer


def _target(
    theirs: Side, layers: range, states: Tensor, original: Tensor, repair: Compensate | None
) -> Tensor:
    """What a layer should give, [windows, length, hidden]; takes the original through `layers`.

    α of the original's own states, and the rest of what those layers make of the student's.
    """
    if repair is None or repair.alpha == 1:
        theirs.pass_through(layers, original)
        return original
    same_input = states.clone()
    theirs.pass_through(layers, original, same_input)
    return torch.lerp(same_input, original, repair.alpha)


def _told(name: str, output: Tensor, target: Tensor) -> dict[str, float | None]:
    """The mean relative error of a stream under `name`, and its CKA to the target."""
    errors = [
        relative_errors(one.float(), other.float()).flatten()
        for one, other in zip(output, target, strict=True)
    ]
    flat = [states.flatten(0, -2) for states in (output, target)]
    every = max(1, len(flat[0]) // CKA_TOKENS)
    pair = torch.stack([states[::every][:CKA_TOKENS] for states in flat], 1)  # [tokens, 2, hidden]
    cka = linear_cka([pair])
    return {
        name: float(torch.cat(errors).mean()),
        "cka" if name == "error" else f"{name}_cka": None if cka is None else float(cka[0, 1]),
    }


def _zeros(layer: nn.Module) -> dict[str, int]:
    weights = [weight for _, weight in prunable(layer)]
    return {
        "zeros": sum(weight.numel() - int(weight.count_nonzero()) for weight in weights),
        "weights": sum(weight.numel() for weight in weights),
    }
