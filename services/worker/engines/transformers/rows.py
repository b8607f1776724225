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
from services.worker.engine import EngineRequest
from services.worker.engines.guide import NO_GUIDE, Guide, Guides
from services.worker.engines.transformers.adapter import HOST_FEATURES
from services.worker.engines.transformers.sampler import Column
from services.worker.features import required_features


class HostRow:
    """One request. Made on the event loop and used on the library's thread; the loop reads
    `logprobs` of tokens that the library has returned."""

    def __init__(self, request: EngineRequest, sampling: Sampling, guide: Guide | None) -> None:
        self.logprobs: dict[int, list[tuple[int, float]]] = {}
        """Output index → the chosen token and the likeliest others, with the model's own log
        probabilities."""
        self.top = sampling.logprobs
        self._sampling = sampling
        self._guide = guide or NO_GUIDE
        self._stops = list(request.stop_ids)
        self._prompt_tokens = len(request.token_ids)
        resumed = request.token_ids[self._prompt_tokens - request.resumed :]
        self._counts = Counter(resumed)
        self._seen: list[int] = []
        """The different tokens so far, if repetitions are penalized."""
        if sampling.repetition_penalty not in (None, 1.0):
            self._seen = sorted(set(request.token_ids))
        self._taken = 0
        self._guide.advance(resumed)

    def follow(self, state: Any) -> None:
        """Notes the tokens that the library has decoded since the last step. A request that it has
        preempted has earlier ones at the end of its prompt."""
        earlier = len(state.initial_tokens) - self._prompt_tokens
        new = [
            *state.initial_tokens[self._prompt_tokens + self._taken :],
            *state.generated_tokens[max(0, self._taken - earlier) :],
        ]
        self._taken += len(new)
        self._counts.update(new)
        if self._seen:
            self._seen = sorted({*self._seen, *new})
        self._guide.advance(new)

    def shape(self, scores: torch.Tensor) -> None:
        """Changes one row, the scores of the next token, in place."""
        sampling = self._sampling
        if self._seen:
            self._penalize_repetitions(scores)
        if self._counts and (sampling.presence_penalty or sampling.frequency_penalty):
            self._penalize_output(scores)
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias), device=scores.device)
            scores[ids] += _like(scores, list(sampling.logit_bias.values()))
        if self._taken < (sampling.min_tokens or 0) and self._stops:
            scores[self._stops] = -torch.inf
        allowed = self._guide.allowed(scores.size(-1), self._stops)
        if allowed is not None:
            scores.masked_fill_(torch.from_numpy(~allowed).to(scores.device), -torch.inf)

    def _penalize_repetitions(self, scores: torch.Tensor) -> None:
        ids = torch.tensor(self._seen, device=scores.device)
        penalty = float(self._sampling.repetition_penalty or 1.0)
        chosen = scores[ids]
        scores[ids] = torch.where(chosen < 0, chosen * penalty, chosen / penalty)

    def _penalize_output(self, scores: torch.Tensor) -> None:
        ids = torch.tensor(list(self._counts), device=scores.device)
        counts = _like(scores, list(self._counts.values()))
        presence = self._sampling.presence_penalty or 0.0
        frequency = self._sampling.frequency_penalty or 0.0
        scores[ids] -= presence + frequency * counts

    def record(self, logprobs: torch.Tensor, chosen: int) -> None:
        """Records a step's log probabilities in the model's own distribution, for the chosen token
        and the likeliest."""
        most = self.top or 0
        values, ids = logprobs.topk(min(most + 1, logprobs.size(-1)))
        likeliest = [(int(token), float(value)) for token, value in zip(ids, values, strict=True)]
        others = [pair for pair in likeliest if pair[0] != chosen]
        self.logprobs[self._taken] = [(chosen, float(logprobs[chosen])), *others[:most]]


def _like(scores: torch.Tensor, values: list[Any]) -> torch.Tensor:
    """Returns values in the type of the scores, and where they are."""
    return torch.tensor(values, device=scores.device, dtype=scores.dtype)


class Rows:
    """The rows of all open requests, and those of the current step."""

    def __init__(self) -> None:
        self._open: dict[str, HostRow] = {}
        self.guides: Guides | None = None
        self.step: list[tuple[int, HostRow]] = []
        """(place in the batch, row) of the requests that have a row."""
        self.raw: dict[int, torch.Tensor] = {}
        """Place → log probabilities before any change, for rows that report them."""

    def open(
        self, key: str, request: EngineRequest, sampling: Sampling
    ) -> dict[int, list[tuple[int, float]]] | None:
        """Adds a row for a request that needs one; returns the dict that gets its log
        probabilities. Raises Invalid."""
        guide = None if self.guides is None else self.guides.open(request)
        features = {feature for _, feature in required_features(sampling)}
        if guide is None and features.isdisjoint(HOST_FEATURES):
            return None
        row = HostRow(request, sampling, guide)
        self._open[key] = row
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
