"""Steps that bring a changed model back: layer-wise compensation, and LoRA.

What they do is in `compensate.py` and `finetune.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from laco.spec import Calibration, Spec

PAPER: dict[str, Any] = {  # the released recipe of the ACL 2026 paper
    "epochs": 10,
    "learning_rate": 5e-5,
    "batch_tokens": 128,
    "held_out": 0,
    "calibration": Calibration(windows=2048, length=128),
}


class Compensate(Spec):
    """Change each layer's weights in turn so that it gives the original's hidden states again.

    Weights that are zero stay zero. The original is the recipe's own model.
    """

    kind: Literal["compensate"] = "compensate"
    mode: Literal["laco+", "paper"] = Field(
        default="laco+",
        description="laco+: closed form, then gradient, the best on held-out text kept; "
        "paper: AdamW on the plain squared error, as released",
    )
    alpha: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Target: 1 the original's own hidden state (dense_stream), 0 what the "
        "original's layers make of this model's input (same_input), between: a mix",
    )
    epochs: int = Field(default=4, ge=0, le=100, description="Passes over the windows by gradient")
    learning_rate: float = Field(default=5e-4, gt=0, le=1, description="Adam's peak step size")
    batch_tokens: int = Field(default=1024, ge=1, description="Tokens for each step of Adam")
    held_out: int = Field(
        default=16, ge=0, description="Further windows that decide what is kept (laco+)"
    )
    calibration: Calibration = Field(
        default=Calibration(windows=64), description="Text that layers are compensated on"
    )
    seed: int = Field(default=0, ge=0, description="Order of the windows")

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """`target` is another way to say alpha; the mode `paper` has settings of its own."""
        if "target" in fields:
            target = fields.pop("target")
            if target not in ("dense_stream", "same_input"):
                raise ValueError(f"target {target!r} is neither dense_stream nor same_input")
            if "alpha" in fields:
                raise ValueError("target and alpha say the same thing; give one of them")
            fields["alpha"] = 1.0 if target == "dense_stream" else 0.0
        if fields.get("mode") == "paper":
            fields = {**PAPER, **fields}
        return fields

    @model_validator(mode="after")
    def _check(self) -> Compensate:
        if self.mode == "laco+" and self.held_out < 1:
            raise ValueError("held_out: laco+ needs windows to decide on; give 1 or more")
        if self.calibration.unit != "window":
            raise ValueError("calibration: compensation works on windows; leave unit")
        return self


class Finetune(Spec):
    """LoRA through peft: small matrices beside every linear, trained on text, then merged.

    Defaults are LLM-Pruner's. Weights that are zero stay zero when the product is merged.
    """

    kind: Literal["finetune"] = "finetune"
    rank: int = Field(default=8, ge=1, le=1024, description="r: rank of the matrices")
    scale: float = Field(default=16, gt=0, description="alpha: the product is scaled by alpha / r")
    dropout: float = Field(default=0.05, ge=0, lt=1, description="Dropout before the matrices")
    learning_rate: float = Field(default=1e-4, gt=0, le=1, description="AdamW's peak step size")
    epochs: int = Field(default=2, ge=1, le=100, description="Passes over the windows")
    batch_tokens: int = Field(default=1024, ge=1, description="Tokens for each step")
    loss: Literal["ce", "kl"] = Field(
        default="ce",
        description="ce: predict the text; kl: predict what the original predicts",
    )
    keep_zeros: bool = Field(
        default=True,
        description="Merge under the mask, so that zero weights stay zero; off: they fill up, "
        "and the report says so",
    )
    held_out: int = Field(default=16, ge=1, description="Further windows; the best epoch is kept")
    calibration: Calibration = Field(
        default=Calibration(windows=64), description="Text to train on"
    )
    seed: int = Field(default=0, ge=0, description="First matrices, dropout, order of the windows")
