"""Samples tokens per request in transformers' continuous batching.

The library's own per-request processors sort the whole vocabulary twice for every row, cannot distinguish a greedy row
from a random one (top-k 1 leaves ties of bfloat16 logits to chance), and have neither min-p nor seeds. Here one
processor does it all, from a row of arguments per parameter. Arguments are read from the tensors in which the library
keeps them, so that a captured CUDA graph uses the values of each step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from services.worker.engines.transformers.adapter import MAX_SEED

GREEDY = -1
"""As `pick`: the most likely token, the lowest id among equals, as `argmax` and `model.generate` choose."""
FREE = 0
"""As `pick`: the engine's own random numbers."""

_NEUTRAL: dict[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "pick": FREE}
_INTEGERS = frozenset({"top_k", "pick"})


def install(
    processors: Any,
    *,
    eager: bool,
    before: Sequence[ContinuousBatchingLogitsProcessor] = (),
    after: Sequence[ContinuousBatchingLogitsProcessor] = (),
) -> None:
    """Makes `processors`, a manager's `ContinuousBatchingLogitsProcessorList`, sample by the arguments of each request.

    Must come before the manager's batch processor is made. `eager`: no CUDA graphs are captured, so that a step may
    leave out what none of its rows needs. `before` and `after`: processors to run around these.
    """
    columns = {name: Column(name) for name in _NEUTRAL if name != "pick"}
    chain = [*before, *columns.values(), Sampler(columns, eager=eager), *after]
    processors.logits_processor.extend(chain)
    processors.tensors_required += len(chain)
    for processor in chain:
        processors.supported_keys.update(processor.supported_kwargs)
    processors.do_processing = True


class Column(ContinuousBatchingLogitsProcessor):
    """One parameter of all rows: changes no score, keeps the values for the sampler."""

    ignored_kwargs = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = torch.int32 if name in _INTEGERS else torch.float32
        self.supported_kwargs = {name: int if name in _INTEGERS else float}
        self.values = torch.empty(0)
        self.given: list[Any] = []
        """The step's values on the host."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Neutral values for rows of padding."""
        neutral = torch.full_like(int32_tensor, _NEUTRAL[self.name], dtype=self.dtype)
        int32_tensor.copy_(neutral.view(torch.int32))

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """The step's values as int32 bits, one per request that gets a token."""
        self.given = [self.value(request.state) for request in requests_with_new_token]
        return torch.tensor(self.given, dtype=self.dtype).view(torch.int32)

    def value(self, state: Any) -> Any:
        """The request's value."""
        return state.logit_processor_kwargs.get(self.name, _NEUTRAL[self.name])

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """`scores`, untouched."""
        self.values = tensor_arg[: scores.size(0)].view(self.dtype)
        return scores


class Sampler(Column):
    """Temperature, top-k, top-p and min-p as transformers' own warpers apply them, in their order; then, for rows that
    are greedy or have a seed, the choice itself: all scores but one become minus infinity."""

    def __init__(self, columns: dict[str, Column], *, eager: bool) -> None:
        super().__init__("pick")
        self._columns = columns
        self._eager = eager

    def value(self, state: Any) -> int:
        """GREEDY, FREE, or a number made of the request's seed and the length of its text so far.

        That length counts prompt and output, and is the same however the prompt was split or found in the cache.
        """
        pick = int(super().value(state))
        return pick if pick <= FREE else _mix(pick * 0x9E3779B1 + state.position_offset) % MAX_SEED + 1

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """The scores from which the library draws."""
        super().__call__(scores, tensor_arg)
        values = {name: column.values for name, column in self._columns.items()}
        if self._required("temperature"):
            scores = scores / values["temperature"].unsqueeze(-1)
        if self._required("top_k", "top_p", "min_p"):
            scores = scores.masked_fill(scores < self._threshold(scores, values), -torch.inf)
        if not self._eager or any(pick != FREE for pick in self.given):
            scores = self._picked(scores)
        return scores

    def _required(self, *names: str) -> bool:
        return not self._eager or any(value != _NEUTRAL[name] for name in names for value in self._columns[name].given)

    def _threshold(self, scores: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
        """The lowest score of each row that stays."""
        vocabulary = scores.size(-1)
        ordered = scores.topk(self._ranks(vocabulary), dim=-1).values
        ranks = torch.arange(ordered.size(-1), device=scores.device)
        top_k = values["top_k"].to(torch.int64)
        top_k = torch.where(top_k <= 0, vocabulary, top_k).unsqueeze(-1)
        kept = ordered.masked_fill(ranks >= top_k, -torch.inf)
        probabilities = kept.softmax(dim=-1)
        # A token stays if those before it do not reach top_p yet; the first one always does.
        before = probabilities.cumsum(dim=-1) - probabilities
        top_p = values["top_p"].unsqueeze(-1)
        # Off means all: the sum of 150,000 floats comes to 1.0 before its end.
        stays = (before < top_p) | (top_p >= 1.0) | (ranks == 0)
        stays &= probabilities >= values["min_p"].unsqueeze(-1) * probabilities[:, :1]
        return kept.masked_fill(~stays | kept.isneginf(), torch.inf).min(dim=-1, keepdim=True).values

    def _ranks(self, vocabulary: int) -> int:
        """How many of the highest scores decide. A whole sort of 150,000 takes a CPU 100 times as long as a top 20."""
        if not self._eager:
            return vocabulary
        rows = zip(*(self._columns[name].given for name in ("top_k", "top_p", "min_p")), strict=True)
        needed = 1
        for top_k, top_p, min_p in rows:
            if top_k > 0:
                needed = max(needed, top_k)
            elif top_p < 1.0 or min_p > 0.0:
                return vocabulary
        # Rows that filter nothing must not be cut at the others' rank either.
        unfiltered = any(top_k <= 0 for top_k in self._columns["top_k"].given)
        return vocabulary if unfiltered else min(needed, vocabulary)

    def _picked(self, scores: torch.Tensor) -> torch.Tensor:
        pick = self.values.unsqueeze(-1)
        noise = _gumbel(pick, scores.size(-1)) if not self._eager or any(p > FREE for p in self.given) else 0.0
        chosen = torch.where(pick > FREE, scores + noise, scores).argmax(dim=-1, keepdim=True)
        ids = torch.arange(scores.size(-1), device=scores.device)
        return scores.masked_fill((pick != FREE) & (ids != chosen), -torch.inf)


def _gumbel(keys: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gumbel noise, a hash of each row's key and each token: adding it and taking the maximum draws from softmax."""
    ids = torch.arange(vocabulary, device=keys.device, dtype=torch.int64)
    bits = _mix(_mix(ids + 0x51ED270B) ^ keys.to(torch.int64))
    # 23 bits: with one more, float32 rounds the largest value up to 1, whose noise is infinite.
    uniform = ((bits >> 9).to(torch.float32) + 0.5) / 2**23
    noise: torch.Tensor = -(-uniform.log()).log()
    return noise


def _mix(value: Any) -> Any:
    """A 32-bit integer hash (the finaliser of MurmurHash3), of an int or of a tensor of int64."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)
