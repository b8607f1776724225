"""Computes on the host what a captured CUDA graph cannot: penalties, biases, a minimum length,
guided decoding and log probabilities. Used only if steps run without CUDA graphs: on a CPU, or with
graphs switched off.

The scores are changed row by row, and only for requests that need it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from schemas.conversation import Sampling
from services.worker.engine import EngineRequest, required_features
from services.worker.engines.guide import Guide, Guides
from services.worker.engines.transformers.adapter import HOST_FEATURES
from services.worker.engines.transformers.sampler import Column


class Row:
    """One request. Made on the event loop and used on the library's thread; the loop reads
    `logprobs` of tokens that the library has returned."""

    def __init__(self, request: EngineRequest, sampling: Sampling, guide: Guide | None) -> None:
        self.logprobs: dict[int, list[tuple[int, float]]] = {}
        """Output index → the chosen token and the likeliest others, with the model's own log
        probabilities."""
        self.top = sampling.logprobs
        self._sampling = sampling
        self._guide = guide
        self._stops = list(request.stop_ids)
        self._prompt = len(request.token_ids)
        resumed = request.token_ids[self._prompt - request.resumed :]
        self._counts = Counter(resumed)
        self._seen = (
            sorted(set(request.token_ids)) if sampling.repetition_penalty not in (None, 1.0) else []
        )
        self._taken = 0
        if guide is not None:
            guide.take(resumed)

    def follow(self, state: Any) -> None:
        """Notes the tokens that the library has decoded since the last step. A request that it has
        preempted has earlier ones at the end of its prompt."""
        earlier = len(state.initial_tokens) - self._prompt
        fresh = [
            *state.initial_tokens[self._prompt + self._taken :],
            *state.generated_tokens[max(0, self._taken - earlier) :],
        ]
        self._taken += len(fresh)
        self._counts.update(fresh)
        if self._seen:
            self._seen = sorted({*self._seen, *fresh})
        if self._guide is not None:
            self._guide.take(fresh)

    def shape(self, scores: torch.Tensor) -> None:
        """Changes one row, the scores of the next token, in place."""
        sampling = self._sampling
        if self._seen:
            ids, penalty = (
                torch.tensor(self._seen, device=scores.device),
                float(sampling.repetition_penalty or 1.0),
            )
            scores[ids] = torch.where(scores[ids] < 0, scores[ids] * penalty, scores[ids] / penalty)
        if self._counts and (sampling.presence_penalty or sampling.frequency_penalty):
            ids = torch.tensor(list(self._counts), device=scores.device)
            counts = torch.tensor(
                list(self._counts.values()), device=scores.device, dtype=scores.dtype
            )
            scores[ids] -= (sampling.presence_penalty or 0.0) + (
                sampling.frequency_penalty or 0.0
            ) * counts
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias), device=scores.device)
            scores[ids] += torch.tensor(
                list(sampling.logit_bias.values()), device=scores.device, dtype=scores.dtype
            )
        if self._taken < (sampling.min_tokens or 0) and self._stops:
            scores[self._stops] = -torch.inf
        if self._guide is not None:
            allowed = self._guide.allowed(scores.size(-1), self._stops)
            if allowed is not None:
                scores.masked_fill_(torch.from_numpy(~allowed).to(scores.device), -torch.inf)

    def record(self, logprobs: torch.Tensor, chosen: int) -> None:
        """Records a step's log probabilities in the model's own distribution, for the chosen token
        and the likeliest."""
        values, ids = logprobs.topk(min((self.top or 0) + 1, logprobs.size(-1)))
        others = [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if int(i) != chosen][
            : self.top or 0
        ]
        self.logprobs[self._taken] = [(chosen, float(logprobs[chosen])), *others]


class Rows:
    """The rows of all open requests, and those of the current step."""

    def __init__(self) -> None:
        self._open: dict[str, Row] = {}
        self.guides: Guides | None = None
        self.step: list[tuple[int, Row]] = []
        """(place in the batch, row) of the requests that have a row."""
        self.raw: dict[int, torch.Tensor] = {}
        """Place → log probabilities before any change, for rows that report them."""

    def open(
        self, key: str, request: EngineRequest, sampling: Sampling
    ) -> dict[int, list[tuple[int, float]]] | None:
        """Adds a row for a request that needs one; returns the dict that gets its log
        probabilities. Raises Invalid."""
        guide = None if self.guides is None else self.guides.open(request)
        if guide is None and not any(
            feature in HOST_FEATURES for _, feature in required_features(sampling)
        ):
            return None
        row = self._open[key] = Row(request, sampling, guide)
        return row.logprobs

    def close(self, key: str) -> None:
        """Removes the row of an ended request."""
        self._open.pop(key, None)

    def begin(self, requests: Sequence[Any]) -> None:
        """Begins a step in which each of these requests gets a token."""
        self.step = []
        for place, request in enumerate(requests):
            row = self._open.get(request.state.request_id)
            if row is not None:
                row.follow(request.state)
                self.step.append((place, row))


class HostProcessor(Column):
    """A processor for which requests have no arguments."""

    def __init__(self, rows: Rows) -> None:
        super().__init__("pick")
        self.supported_kwargs = {}
        self._rows = rows


class Shaper(HostProcessor):
    """The first processor: changes the scores of the rows that need it."""

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Begins the step. The library's tensors hold nothing for it."""
        self._rows.begin(requests_with_new_token)
        return super().prepare_tensor_args(requests_with_new_token)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Returns the scores from which to choose."""
        rows = self._rows
        rows.raw = {}
        if not rows.step:
            return scores
        scores = scores.to(torch.float32, copy=True)
        for place, row in rows.step:
            if row.top is not None:
                rows.raw[place] = scores[place].log_softmax(dim=-1)
            row.shape(scores[place])
        return scores


class LogprobCollector(HostProcessor):
    """The last processor: records the token that each row has chosen. Rows that report log
    probabilities have one score left by now (`pick`)."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Returns `scores` unchanged."""
        for place, row in self._rows.step:
            raw = self._rows.raw.get(place)
            if raw is not None:
                row.record(raw, int(scores[place].argmax()))
        return scores
