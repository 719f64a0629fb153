"""lm-evaluation-harness over a loaded model: its prompts and metrics, our log-likelihoods.

A stock `HFLM`, except that what several requests begin with is computed once, and that progress is
told and cancelling works between batches. Which questions are asked is in `questions.py`; the
tokens' side is in `shared_context.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lm_eval.models.huggingface import HFLM

from laco.evaluate.shared_context import Request, log_likelihoods, shares

if TYPE_CHECKING:
    from laco.context import Context
    from laco.models import LoadedModel

AT_ONCE = 8  # requests between two looks at the context, where the harness itself runs them
Stock: Any = HFLM  # the harness's own; how it is registered hides its methods from type checkers
os.environ.setdefault("DISABLE_MULTIPROC", "1")  # its bootstrap would start a process for each core


class Asking(Stock):
    """The model as the harness sees it. `shared`: whether contexts are computed once."""

    def __init__(self, lm: LoadedModel, context: Context) -> None:
        super().__init__(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=1)
        self.stack, self.context = lm.layers, context
        self.shared = shares(lm.layers)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """As the harness does it, without its progress bar."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """For each (texts, context ids, continuation ids): log p in nats, and whether greedy."""
        if not self.shared:
            return self._by_few(super()._loglikelihood_tokens, requests)
        room = self.max_length + 1  # the last token is asked about, not fed
        asked = [
            Request(tuple((context + continuation)[-room:]), len(continuation))
            for _, context, continuation in requests
        ]
        return log_likelihoods(self.stack, asked, lambda done: self._tell(done, len(asked)))

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The harness's own generation, a few requests at a time; slow, and told so."""
        return self._by_few(super().generate_until, requests, "written token by token: slow")

    def _by_few(self, answer: Any, requests: list[Any], how: str = "one by one") -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(requests), AT_ONCE):
            found += answer(requests[start : start + AT_ONCE], disable_tqdm=True)
            self._tell(len(found), len(requests), how)
        return found

    def _tell(self, done: int, of: int, how: str = "contexts shared") -> None:
        self.context.step(done / of, f"{done} of {of} requests, {how}")
