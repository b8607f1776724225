"""Finds the settings of a turn's output: how many tokens may follow its prompt, what ends it, and
how it is sampled. Pure.

Prompt and answer must fit the context window. Agent clients react to the texts of this error.
Claude Code compacts its history when a 400 reads `prompt is too long: N tokens > M maximum`, Codex
and opencode when the code is `context_length_exceeded`. "input length and `max_tokens` exceed
context limit" is never sent: Claude Code would retry with a smaller `max_tokens`, and other clients
ignore it. Claude Code requests 32,000 to 128,000 tokens of any model, so `max_tokens` is an upper
bound, cut to what the window leaves, and only a prompt that leaves no room for a useful answer is
refused.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Sampling
from schemas.errors import ContextOverflow, Invalid
from schemas.events import BrokenCall
from services.preprocessor.model.model_setup import ModelSetup
from services.tokenization.model_files import with_defaults

USEFUL_ANSWER = 1024
"""Tokens for which the window must have room, so that the client can still compact; in small
windows fewer."""
MAX_STOPS = 256
MAX_STOP_CHARS = 4096
"""Length of one stop string. Each character of the output is compared with all stop strings."""
MAX_BIASES = 1024
MAX_BIAS = 100
"""The range of OpenAI's API; its ends ban or force a token."""
SECOND_TEMPERATURE: Final = 0.5
"""The least temperature after a broken call. Half of the usual one: a token that was half as likely
as the best one is chosen in a fifth of all cases, one that was a tenth as likely in a
hundredth."""
_MAX_SEED: Final = 2**63


class OutputLimit(NamedTuple):
    """The limit of output tokens, and what sets it."""

    max_tokens: int
    window_limited: bool
    """The window sets it, not the client: reaching it means that the context is full."""


class OutputSettings(Struct, frozen=True, kw_only=True):
    """The settings of what is decoded after a prompt."""

    max_tokens: int
    window_limited: bool
    """As in `OutputLimit`."""
    stop_ids: list[int]
    """The ids that end the turn, each once."""
    sampling: Sampling
    """The client's settings, with the model's defaults for the others, and `max_tokens` set."""


def output_settings(
    client: Sampling, setup: ModelSetup, prompt_tokens: int, window: int | None = None
) -> OutputSettings:
    """The settings of the output after a prompt. `client`: the settings of the request; `window`:
    the workers' context window in tokens, if known. Raises ContextOverflow where prompt and answer
    do not fit."""
    limit = limit_output(
        prompt_tokens,
        client.max_tokens,
        setup.effective_window(window),
        setup.card.max_output_tokens or None,
    )
    return OutputSettings(
        max_tokens=limit.max_tokens,
        window_limited=limit.window_limited,
        stop_ids=_stop_ids(client, setup),
        sampling=replace(with_defaults(client, setup.sampling), max_tokens=limit.max_tokens),
    )


def _stop_ids(client: Sampling, setup: ModelSetup) -> list[int]:
    """The ids that end a turn, the client's among them."""
    ids = list(client.stop_token_ids)
    if not client.ignore_eos:
        ids = [*setup.stop_ids, *ids]
    return list(dict.fromkeys(ids))


def limit_output(
    prompt_tokens: int, requested: int | None, window: int, cap: int | None = None
) -> OutputLimit:
    """The limit of the output after a prompt in a window (both in tokens, the window holds prompt
    and output).

    `requested` None: what the window leaves; 0: the prompt is only prefilled. `cap`: the operator's
    longest answer, which clients see in the model list; a longer request is cut without an error.
    Raises ContextOverflow where less is left than was requested, and less than a useful answer
    needs.
    """
    if cap is not None:
        requested = cap if requested is None else min(requested, cap)
    needed = min(USEFUL_ANSWER, window // 16)
    if requested is not None:
        needed = min(requested, needed)
    left = window - prompt_tokens
    if left < needed:
        details = {
            "prompt_tokens": prompt_tokens,
            "max_prompt_tokens": window - needed,
            "context_window": window,
        }
        if requested is not None:
            details["max_tokens"] = requested
        raise ContextOverflow(
            f"prompt is too long: {prompt_tokens} tokens > {window - needed} maximum",
            param="messages",
            code="context_length_exceeded",
            details=details,
        )
    if requested is None or requested > left:
        return OutputLimit(left, window_limited=True)
    return OutputLimit(requested, window_limited=False)


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raises Invalid for more or longer stop strings than a parser can search, and for token ids
    outside the vocabulary."""
    stops = sampling.stop
    if len(stops) > MAX_STOPS:
        raise Invalid(
            f"there may be {MAX_STOPS} stop sequences, not {len(stops)}", param="stop_sequences"
        )
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise Invalid(
            f"a stop sequence may have {MAX_STOP_CHARS} characters", param="stop_sequences"
        )
    _check_ids("stop_token_ids", sampling.stop_token_ids, MAX_STOPS, vocab_size)
    _check_ids("logit_bias", sampling.logit_bias, MAX_BIASES, vocab_size)
    for bias in sampling.logit_bias.values():
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise Invalid(
                f"a bias must be between -{MAX_BIAS} and {MAX_BIAS}, not {bias}",
                param="logit_bias",
            )


def _check_ids(name: str, ids: Collection[int], most: int, vocab_size: int) -> None:
    if len(ids) > most:
        raise Invalid(f"{name} may have {most} tokens, not {len(ids)}", param=name)
    for token in ids:
        if not 0 <= token < vocab_size:
            raise Invalid(
                f"{name}: token id {token} is not in the vocabulary (0 to {vocab_size - 1})",
                param=name,
            )


def second_try(
    output: OutputSettings, broken: BrokenCall, features: Collection[str]
) -> OutputSettings:
    """The settings of what follows a broken call, changed so that the model writes something else.
    The broken call counts for the limit of tokens. `features`: those of the engines; one that can
    only be greedy writes the call again."""
    max_tokens = max(output.max_tokens - broken.tokens, 0)
    sampling = replace(_varied(output.sampling, features), max_tokens=max_tokens)
    return replace(output, max_tokens=max_tokens, sampling=sampling)


def _varied(sampling: Sampling, features: Collection[str]) -> Sampling:
    """Other random numbers, and some randomness where there is little or none."""
    changes: dict[str, Any] = {}
    if sampling.seed is not None:
        changes["seed"] = (sampling.seed + 1) % _MAX_SEED
    if "sampling" in features:
        changes["temperature"] = max(sampling.temperature or 0.0, SECOND_TEMPERATURE)
        if sampling.top_k == 1:
            changes["top_k"] = None
    return replace(sampling, **changes)
