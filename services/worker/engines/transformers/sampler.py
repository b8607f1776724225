"""Samples tokens per request in transformers' continuous batching.

The library's own per-request processors sort the whole vocabulary twice for every row, cannot
distinguish a greedy row from a random one (top-k 1 leaves ties of bfloat16 logits to chance), and
have neither min-p nor seeds. One processor here does all of it, with a tensor of arguments for each
parameter. The library keeps these tensors, so that a captured CUDA graph uses the values of each
step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from services.worker.engines.transformers.adapter import MAX_SEED

GREEDY = -1
"""Value of `pick`: the most likely token, the lowest id among equals, as `argmax` and
`model.generate` choose."""
FREE = 0
"""Value of `pick`: the engine's random numbers decide."""

_NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "pick": FREE,
}
_INTEGERS = frozenset({"top_k", "pick"})


def install(
    processors: Any,
    *,
    eager: bool,
    before: Sequence[ContinuousBatchingLogitsProcessor] = (),
    after: Sequence[ContinuousBatchingLogitsProcessor] = (),
) -> None:
    """Makes `processors`, a manager's `ContinuousBatchingLogitsProcessorList`, sample by the
    arguments of each request.

    To be called before the manager's batch processor is made. `eager`: no CUDA graphs are captured,
    so that a step may omit what none of its rows needs. `before` and `after`: processors to run
    around these.
    """
    columns = {name: Column(name) for name in _NEUTRAL if name != "pick"}
    chain = [*before, *columns.values(), RowSampler(columns, eager=eager), *after]
    processors.logits_processor.extend(chain)
    processors.tensors_required += len(chain)
    for processor in chain:
        processors.supported_keys.update(processor.supported_kwargs)
    processors.do_processing = True


class Column(ContinuousBatchingLogitsProcessor):
    """The values of one parameter for all rows. Changes no score."""

    ignored_kwargs = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = torch.int32 if name in _INTEGERS else torch.float32
        self.supported_kwargs = {name: int if name in _INTEGERS else float}
        self.values = torch.empty(0)
        self.host_values: list[Any] = []
        """The step's values on the host."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Writes neutral values for rows of padding."""
        neutral = torch.full_like(int32_tensor, _NEUTRAL[self.name], dtype=self.dtype)
        int32_tensor.copy_(neutral.view(torch.int32))

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Returns the step's values as int32 bits, one per request that gets a token."""
        self.host_values = [self.value(request.state) for request in requests_with_new_token]
        return torch.tensor(self.host_values, dtype=self.dtype).view(torch.int32)

    def value(self, state: Any) -> Any:
        """Returns a request's value."""
        return state.logit_processor_kwargs.get(self.name, _NEUTRAL[self.name])

    @property
    def has_values(self) -> bool:
        """Whether any value of the step is not neutral."""
        return any(value != _NEUTRAL[self.name] for value in self.host_values)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Keeps the values for the sampler. Returns `scores` unchanged."""
        self.values = tensor_arg[: scores.size(0)].view(self.dtype)
        return scores


class RowSampler(Column):
    """Applies temperature, top-k, top-p and min-p as transformers' own warpers do, in their order.
    Then it chooses the token of rows that are greedy or have a seed: all other scores become minus
    infinity."""

    def __init__(self, columns: dict[str, Column], *, eager: bool) -> None:
        super().__init__("pick")
        self._columns = columns
        self._eager = eager

    def value(self, state: Any) -> int:
        """Returns GREEDY, FREE, or a hash of the request's seed and the number of its tokens so
        far.

        That number counts prompt and output, and does not depend on how the prompt was split or
        found in the cache.
        """
        pick = int(super().value(state))
        if pick <= FREE:
            return pick
        hashed: int = _mix(pick * 0x9E3779B1 + state.position_offset)
        return hashed % MAX_SEED + 1

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Returns the scores from which the library draws."""
        super().__call__(scores, tensor_arg)
        values = {name: column.values for name, column in self._columns.items()}
        if self._required("temperature"):
            scores = scores / values["temperature"].unsqueeze(-1)
        if self._required("top_k", "top_p", "min_p"):
            scores = scores.masked_fill(scores < self._threshold(scores, values), -torch.inf)
        if not self._eager or any(pick != FREE for pick in self.host_values):
            scores = self._picked(scores)
        return scores

    def _required(self, *names: str) -> bool:
        """Returns whether any row of the step has another value than the neutral one."""
        if not self._eager:
            return True
        return any(self._columns[name].has_values for name in names)

    def _threshold(self, scores: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the lowest score of each row that is likeliest."""
        vocabulary = scores.size(-1)
        ordered = scores.topk(self._ranks(vocabulary), dim=-1).values
        ranks = torch.arange(ordered.size(-1), device=scores.device)
        top_k = values["top_k"].to(torch.int64)
        top_k = torch.where(top_k <= 0, vocabulary, top_k).unsqueeze(-1)
        likeliest = ordered.masked_fill(ranks >= top_k, -torch.inf)
        probabilities = likeliest.softmax(dim=-1)
        # A token is kept if those before it do not reach top_p; the first one always is.
        before = probabilities.cumsum(dim=-1) - probabilities
        top_p = values["top_p"].unsqueeze(-1)
        # 1.0 keeps all: the sum of 150,000 floats reaches 1.0 before its end.
        stays = (before < top_p) | (top_p >= 1.0) | (ranks == 0)
        stays &= probabilities >= values["min_p"].unsqueeze(-1) * probabilities[:, :1]
        scores_that_stay = likeliest.masked_fill(~stays | likeliest.isneginf(), torch.inf)
        return scores_that_stay.min(dim=-1, keepdim=True).values

    def _ranks(self, vocabulary: int) -> int:
        """Returns how many of the highest scores are needed. On a CPU, sorting 150,000 takes 100
        times as long as a top 20."""
        # Rows without a top-k must not be cut at the rank of others.
        top_k = self._columns["top_k"].host_values
        if not self._eager or any(k <= 0 for k in top_k):
            return vocabulary
        needed: int = max([1, *top_k])
        return min(needed, vocabulary)

    def _picked(self, scores: torch.Tensor) -> torch.Tensor:
        pick = self.values.unsqueeze(-1)
        noisy = scores
        if not self._eager or any(value > FREE for value in self.host_values):
            noisy = scores + _gumbel(pick, scores.size(-1))
        chosen = torch.where(pick > FREE, noisy, scores).argmax(dim=-1, keepdim=True)
        ids = torch.arange(scores.size(-1), device=scores.device)
        return scores.masked_fill((pick != FREE) & (ids != chosen), -torch.inf)


def _gumbel(keys: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Returns Gumbel noise, a hash of row key and token: the maximum of scores with noise is a draw
    from softmax."""
    ids = torch.arange(vocabulary, device=keys.device, dtype=torch.int64)
    bits = _mix(_mix(ids + 0x51ED270B) ^ keys.to(torch.int64))
    # 23 bits: with 24, float32 rounds the largest value up to 1, and the noise of 1 is infinite.
    uniform = ((bits >> 9).to(torch.float32) + 0.5) / 2**23
    noise: torch.Tensor = -(-uniform.log()).log()
    return noise


def _mix(value: Any) -> Any:
    """Hashes an int or a tensor of int64 to 32 bits (the finalizer of MurmurHash3)."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)
