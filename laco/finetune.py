"""LoRA on a loaded model: matrices beside every linear of the layers, trained on text, then merged.

`train_adapters` leaves them active in the model, so that they can be measured apart;
`merge_adapters` adds their products to the weights. It knows neither where the text comes from nor
what was done to the model before. Next: `adapters.py`, what is trained, and `head.py`, which
measures the held-out loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laco.adapters import Adapters, insert_adapters, merge_adapters, merged_weight, unwrap
from laco.errors import CalibrationError, ModelError, NumericalError, RecipeError
from laco.head import TOKENS, token_losses
from laco.walk import logits

if TYPE_CHECKING:
    from laco.context import Context
    from laco.layers import LayerStack
    from laco.models import LoadedModel
    from laco.recipe import Finetune

__all__ = ["Adapters", "finetune", "merge_adapters", "merged_weight", "train_adapters", "unwrap"]

WARM_UP = 0.1  # of the steps
HEAD_TOKENS = 256  # through the head at a time, forth and back
CLIP = 1.0  # longest gradient, over all adapters together


def finetune(
    lm: LoadedModel,
    step: Finetune,
    train: Tensor,
    held_out: Tensor,
    context: Context,
    original: Callable[[], LoadedModel] | None,
) -> dict[str, Any]:
    """The report of a LoRA training whose product is merged into `lm`'s own weights, in place.

    train, held_out: [windows, length] token ids. The report is that of `train_adapters` and of
    `merge_adapters`, and `held_out_after`, measured once merged. Afterwards `lm.model` holds the
    modules it held before; nothing of peft is left. An error or `Cancelled` before the merge
    leaves its weights bit for bit as they were; the merge itself is not interrupted.
    Raises what those two raise, and `NumericalError` when the merged model's loss is not finite.
    """
    started = time.monotonic()
    adapters, report = train_adapters(lm, step, train, held_out, context, original)
    report |= merge_adapters(lm, adapters, step.keep_zeros)
    report["held_out_after"] = held_out_loss(lm.layers, held_out, "after merging")
    if filled := report["zeros_filled"]:
        report["notes"].append(
            f"Merging filled {filled} of the {report['zeros_before']} weights that were zero; "
            "keep_zeros would have kept them."
        )
    report["seconds"] = time.monotonic() - started
    return report


def train_adapters(
    lm: LoadedModel,
    step: Finetune,
    train: Tensor,
    held_out: Tensor,
    context: Context,
    original: Callable[[], LoadedModel] | None,
) -> tuple[Adapters, dict[str, Any]]:
    """The adapters of the best epoch, active in `lm.model`, and the report of their training.

    AdamW without weight decay; the step size rises over the first tenth of the steps, then falls
    to zero by a cosine; gradients are clipped at length 1. The model's own dropout is off. Kept is
    the epoch with the least held-out cross-entropy, whatever the training loss. The loss `kl` is
    KL(original ‖ model) per token. `original` is asked for its held-out loss, for `kl` for its
    final states too, and let go before training. Where memory runs out, half as many windows are
    run at a time and their gradients added up: the same step, and a note. Ambient random state is
    not touched.

    Report: `curve` of {step, loss}; `epochs` of {epoch, step (its last), train, held_out, seconds};
    `best_epoch`, `held_out_before`, `original_held_out` (given an original), `trained_parameters`,
    `seconds`, `notes`. What there is of it is published after each step. Losses are in nats per
    token. A loss that is not finite ends the training, and the best epoch so far is kept;
    `NumericalError` when there is none. Every error, and `Cancelled`, leaves the model as it was.
    `CalibrationError` when a set of windows is empty or shorter than two tokens; `RecipeError` for
    `kl` without `original`; `ArchitectureError` when peft cannot adapt these linears; `ModelError`
    when memory runs out with a single window.
    """
    for windows, role in ((train, "training"), (held_out, "held-out")):
        if windows.shape[0] < 1 or windows.shape[1] < 2:
            raise CalibrationError(
                f"The {role} text is of {windows.shape[0]} windows of {windows.shape[1]} tokens; "
                "LoRA needs one window or more, of two tokens or more."
            )
    if step.loss == "kl" and original is None:
        raise RecipeError("The loss kl needs the original model beside this one; use ce.")
    started = time.monotonic()
    report: dict[str, Any] = {}
    device = lm.model.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        teacher: Tensor | None = None
        if original is not None:
            dense = original()
            report["original_held_out"] = held_out_loss(dense.layers, held_out, "of the original")
            if step.loss == "kl":
                _check_heads(lm, dense)
                teacher = _final_states(dense.layers, train)
            del dense  # its memory is free from here on
        report["held_out_before"] = held_out_loss(lm.layers, held_out, "before training")
        torch.manual_seed(step.seed)
        adapters = insert_adapters(lm, step)
        try:
            report["trained_parameters"] = sum(p.numel() for p in adapters.parameters())
            training = _Training(lm, step, adapters, context, teacher, known=dict(report))
            report |= training.run(train, held_out)
        except BaseException:
            unwrap(lm, adapters)
            raise
    best = report["epochs"][report["best_epoch"] - 1]["held_out"]
    if best >= report["held_out_before"]:
        report["notes"].append(
            f"No epoch lowered the held-out loss ({report['held_out_before']:.4f} before, "
            f"{best:.4f} after the best); use a smaller learning rate or more text."
        )
    report["seconds"] = time.monotonic() - started
    return adapters, report


@torch.no_grad()
def held_out_loss(stack: LayerStack, windows: Tensor, when: str) -> float:
    """Mean cross-entropy of the next token over `windows` [windows, length], in nats per token.

    Logits exist for a tile at a time. `NumericalError`, told `when`, if it is not finite.
    """
    total = 0.0
    for few in windows.split(max(1, TOKENS // windows.shape[1])):
        few = few.to(stack.model.device)
        final = stack.trunk(input_ids=few, use_cache=False)[0]  # [few, length, hidden]
        losses = token_losses(stack, final[:, :-1].flatten(0, 1), few[:, 1:].flatten())
        total += float(losses.double().sum())
    mean = total / (windows.shape[0] * (windows.shape[1] - 1))
    if not math.isfinite(mean):
        raise NumericalError(
            f"The held-out loss {when} is not finite; the weights are broken, or too large for "
            "this number format: try bfloat16 or float32."
        )
    return mean


def step_size(step: int, steps: int) -> float:
    """The share of the peak step size for step 0, 1, … of `steps`: a rise, then a cosine."""
    rise = math.ceil(WARM_UP * steps)
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2


@dataclass
class _Training:
    """One training of `adapters`; `at_once` windows are run together."""

    lm: LoadedModel
    step: Finetune
    adapters: Adapters
    context: Context
    teacher: Tensor | None  # for kl: what the original's head is fed, [windows, length, hidden]
    known: dict[str, Any]  # of the report, before training
    at_once: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, train: Tensor, held_out: Tensor) -> dict[str, Any]:
        """The training's part of the report; the best epoch's matrices are in place afterwards."""
        parameters = self.adapters.parameters()
        optimizer = torch.optim.AdamW(parameters, lr=self.step.learning_rate, weight_decay=0)
        order = torch.Generator().manual_seed(self.step.seed)
        size = self.at_once = max(1, self.step.batch_tokens // train.shape[1])
        steps = self.step.epochs * math.ceil(len(train) / size)
        epochs: list[dict[str, Any]] = []
        best, kept = 0, [parameter.detach() for parameter in parameters]
        for epoch in range(1, self.step.epochs + 1):
            started = time.monotonic()
            batches = torch.randperm(len(train), generator=order).split(size)
            place = f"epoch {epoch} of {self.step.epochs}"
            try:
                self.adapters.set_dropout(True)
                mean = self._epoch(optimizer, train, batches, steps, place, epochs)
                self.adapters.set_dropout(False)
                self.context.step(len(self.curve) / steps, f"{place}, held-out loss")
                loss = held_out_loss(self.lm.layers, held_out, f"after {place}")
            except NumericalError as error:
                if not best:
                    raise
                self.notes.append(f"{error} The adapters of epoch {best} are kept.")
                break
            seconds = time.monotonic() - started
            step = {"epoch": epoch, "step": len(self.curve), "train": mean, "held_out": loss}
            epochs.append({**step, "seconds": seconds})
            if not best or loss < epochs[best - 1]["held_out"]:
                best = epoch
                kept = [parameter.detach().clone() for parameter in parameters]
        self.adapters.set_dropout(False)
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value).requires_grad_(False)
                parameter.grad = None
        return {"curve": self.curve, "epochs": epochs, "best_epoch": best, "notes": self.notes}

    def _epoch(
        self,
        optimizer: torch.optim.Optimizer,
        train: Tensor,
        batches: tuple[Tensor, ...],
        steps: int,
        place: str,
        epochs: list[dict[str, Any]],
    ) -> float:
        """The mean training loss of one pass over `train`; a batch is the indices of windows."""
        total = 0.0
        for batch in batches:
            optimizer.param_groups[0]["lr"] = self.step.learning_rate * step_size(
                len(self.curve), steps
            )
            loss = self._gradients(optimizer, train, batch)
            norm = nn.utils.clip_grad_norm_(self.adapters.parameters(), CLIP)
            if not math.isfinite(loss) or not bool(norm.isfinite()):
                raise NumericalError(
                    f"The training loss or its gradient is not finite in {place}, step "
                    f"{len(self.curve) + 1}; use a smaller learning rate than "
                    f"{self.step.learning_rate:g}."
                )
            optimizer.step()
            self.curve.append({"step": len(self.curve) + 1, "loss": loss})
            total += loss * len(batch)
            self.context.step(len(self.curve) / steps, f"{place}, loss {loss:.2f}")
            self.context.publish({**self.known, "curve": self.curve, "epochs": epochs})
        return total / sum(len(batch) for batch in batches)

    def _gradients(self, optimizer: torch.optim.Optimizer, train: Tensor, batch: Tensor) -> float:
        """The mean loss over the windows `batch` of `train`, and its gradient in the parameters."""
        while True:
            optimizer.zero_grad()
            total = 0.0
            try:
                for few in batch.split(self.at_once):
                    total += self._back(train, few, len(few) / len(batch))
                return total
            except torch.OutOfMemoryError as error:
                held = min(self.at_once, len(batch))
                if held == 1:
                    raise ModelError(
                        f"Memory ran out on a single window of {train.shape[1]} tokens; use "
                        "shorter windows or another device."
                    ) from error
                self.at_once = held // 2
                self.notes.append(
                    f"Memory ran out with {held} windows at a time; since then {self.at_once} were "
                    "run at a time, and gradients added up."
                )

    def _back(self, train: Tensor, few: Tensor, share: float) -> float:
        """The loss of the windows `few` in nats per token, times `share`; adds its gradient.

        The head goes back a chunk of tokens at a time, so whole logits never exist.
        """
        stack = self.lm.layers
        windows = train[few].to(self.lm.model.device)
        final = stack.trunk(input_ids=windows, use_cache=False)[0]  # [few, length, hidden]
        last = final.shape[1] - (self.teacher is None)  # the last token predicts none of the text
        fed = final.detach()[:, :last].flatten(0, 1).requires_grad_(True)  # [tokens, hidden]
        if self.teacher is None:
            wanted = windows[:, 1:].flatten()  # [tokens] ids
        else:
            wanted = self.teacher[few].to(final.device).flatten(0, 1)  # [tokens, hidden]
        total = 0.0
        for part, want in zip(fed.split(HEAD_TOKENS), wanted.split(HEAD_TOKENS), strict=True):
            loss = self._loss(part, want) * (share / len(fed))
            loss.backward()
            total += float(loss.detach())
        assert fed.grad is not None
        final[:, :last].backward(fed.grad.view(final[:, :last].shape))
        return total

    def _loss(self, fed: Tensor, wanted: Tensor) -> Tensor:
        """The summed loss of what the head is fed [tokens, hidden], to ids or the original's."""
        scores = logits(self.lm.layers, fed.unsqueeze(0))[0].float()  # [tokens, vocabulary]
        if wanted.dim() == 1:
            return nn.functional.cross_entropy(scores, wanted, reduction="sum")
        with torch.no_grad():
            theirs = logits(self.lm.layers, wanted.unsqueeze(0))[0].float().log_softmax(-1)
        ours = scores.log_softmax(-1)
        return nn.functional.kl_div(ours, theirs, reduction="sum", log_target=True)


@torch.no_grad()
def _final_states(stack: LayerStack, windows: Tensor) -> Tensor:
    """What the head is fed, [windows, length, hidden], on the host."""
    parts = [
        stack.trunk(input_ids=few.to(stack.model.device), use_cache=False)[0].cpu()
        for few in windows.split(max(1, TOKENS // windows.shape[1]))
    ]
    return torch.cat(parts)


def _check_heads(lm: LoadedModel, original: LoadedModel) -> None:
    """The original's predictions are made by this model's head, so the two must be one."""
    heads: list[Any] = [one.model.get_output_embeddings() for one in (lm, original)]
    ours, theirs = (head.weight for head in heads)
    if not torch.equal(ours, theirs.to(ours.device)):
        raise RecipeError(
            "The loss kl needs the original's head, and this model has another; use ce."
        )
