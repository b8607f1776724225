"""Changes the decoding of a turn that goes on before a broken call, so that the model writes
something else. Pure."""

from collections.abc import Collection
from typing import Any, Final

from msgspec.structs import replace

from schemas.conversation import Sampling
from schemas.events import BrokenCall
from services.preprocessor.prompt import LimitedPrompt

TEMPERATURE: Final = 0.5
"""The least temperature. Half of the usual one: a token that was half as likely as the best one is
chosen in a fifth of all cases, one that was a tenth as likely in a hundredth."""
_MAX_SEED: Final = 2**63


def second_try(
    prompt: LimitedPrompt, broken: BrokenCall, features: Collection[str]
) -> LimitedPrompt:
    """The prompt with the settings for what follows a broken call, which counts for the limit of
    tokens. `features`: those of the engines; one that can only be greedy writes the call again."""
    max_tokens = max(prompt.max_tokens - broken.tokens, 0)
    sampling = replace(_varied(prompt.sampling, features), max_tokens=max_tokens)
    return replace(prompt, max_tokens=max_tokens, sampling=sampling)


def _varied(sampling: Sampling, features: Collection[str]) -> Sampling:
    """Other random numbers, and some randomness where there is little or none."""
    changes: dict[str, Any] = {}
    if sampling.seed is not None:
        changes["seed"] = (sampling.seed + 1) % _MAX_SEED
    if "sampling" in features:
        changes["temperature"] = max(sampling.temperature or 0.0, TEMPERATURE)
        if sampling.top_k == 1:
            changes["top_k"] = None
    return replace(sampling, **changes)
