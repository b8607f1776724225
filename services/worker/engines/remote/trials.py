"""Tries a server before it serves: whether it is the right model, and what it honours.

Interfaces ignore fields that they do not know, and a feature may depend on a setting of the server.
So each feature is requested once, and judged by its effect where it has one that can be seen.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from schemas.control import VISION
from schemas.conversation import OutputFormat, Sampling
from schemas.errors import EngineFailed, Invalid, Overloaded, TurnwireError
from services.tokenization.model_files import ModelFacts
from services.worker.engine import Engine, EngineInfo, EngineRequest
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.trial import TrialOutput, decode_trial
from services.worker.engines.zmq_events.reader import ZmqKvReader

PROMPT_TOKENS = 33
"""Prompt of a server without prefix sharing."""
OUTPUT_TOKENS = 3
ATTEMPTS = 3
"""A feature must show in one of them: rounding may change a token."""
PROMPTS = 4
"""Prompts that are drawn at most."""
EVENTS_S = 3.0
"""How long the KV events of a prompt are awaited."""
_IGNORED = "the inference server ignores it"
_NO_CACHED = (
    "cannot be verified: the inference server does not report cached tokens (`vllm serve` needs "
    "`--enable-prompt-tokens-details`)"
)
_BANNED = -100.0
_NOISE = 0.1
"""Difference of two log probabilities that the arithmetic of a batch explains."""


class Trials:
    """The trials of one server."""

    def __init__(self, engine: Engine, info: EngineInfo, model: ModelFacts) -> None:
        self._engine = engine
        self._info = info
        self._model = model
        self._number = 0
        ends = set(model.eos_ids)
        size = info.vocab_size or PROMPT_TOKENS
        self._ids = [token for token in range(size) if token not in ends]
        self._prompt: list[int] = []
        self._greedy: list[int] = []

    async def run(self) -> dict[str, str]:
        """Returns what the server lacks of the features that it may have, and why: what it refuses,
        or ignores.

        Raises Invalid if it has another model, TurnwireError if it cannot decode at all, or is too
        busy for a trial: without one a feature would be lacking until the next start.
        """
        await self._check_vocabulary()
        await self._find_prompt()
        second = await self._decode()
        self._greedy = second.ids  # of a prompt in the cache, as in the trials that follow
        await self._decode({"stop_ids": self._greedy[:1]})
        lacking: dict[str, str] = {}
        if self._info.block_tokens is not None and second.cached == 0:
            lacking["prefix_cache"] = "the inference server did not find a prompt again"
        for feature, (fields, honours) in _FEATURES.items():
            if feature in self._info.features:
                reason = await self._try(feature, fields, honours)
                if reason is not None:
                    lacking[feature] = reason
        if "seed" in self._info.features - lacking.keys() and await self._ignores_seed():
            lacking["seed"] = _IGNORED
        if "salt" in self._info.features - lacking.keys():
            reason = await self._distrust_salts()
            if reason is not None:
                lacking["salt"] = reason
        compares = {"logprobs", "min_p"} <= self._info.features - lacking.keys()
        if compares and await self._scales_logprobs():
            reason = "its log probabilities are those after the temperature"
            lacking |= dict.fromkeys(("logprobs", "top_logprobs"), reason)
        return lacking

    async def run_image(self, request: EngineRequest) -> dict[str, str]:
        """Tries a request with an image. Returns what the server lacks, and why. Raises as `run`
        does."""
        try:
            await decode_trial(self._engine, request)
        except Overloaded as error:
            raise _not_tried(VISION, error) from error
        except TurnwireError as error:
            return {VISION: str(error)}
        return {}

    async def run_events(self, reader: ZmqKvReader) -> dict[str, str]:
        """Sends new prompts until the KV events have the blocks of one: what a server publishes
        before the connection is there is lost. Returns what the server lacks, and why. Raises as
        `run` does."""
        for _ in range(ATTEMPTS):
            await self._find_prompt()
            if await reader.finds(self._prompt, self._info.block_tokens or 1, EVENTS_S):
                return {}
        return {
            "kv_events": f"no event of a prompt has arrived from {reader.endpoint}: is the port "
            "reachable from the worker?"
        }

    async def _find_prompt(self) -> None:
        """Draws a prompt of random ids, which no cache has yet. Draws again if its output is not
        whole characters: llama-server does not send each token of those."""
        block = self._info.block_tokens
        length = 2 * block + 1 if block else PROMPT_TOKENS
        logprobs = 0 if "logprobs" in self._info.features else None
        for _ in range(PROMPTS):
            room = self._info.max_model_len - OUTPUT_TOKENS
            self._prompt = random.choices(self._ids, k=min(length, room))
            with suppress(BadAnswer):
                output = await self._decode({"sampling": _greedy_sampling(logprobs=logprobs)})
                if len(output.ids) == OUTPUT_TOKENS:
                    return

    async def _check_vocabulary(self) -> None:
        """Raises Invalid if the last token of the model's vocabulary is none of the server's.

        The token is first sent as a bias: SGLang checks those, but not the ids of a prompt, and a
        GPU fails at an id that the model lacks.
        """
        size = self._info.vocab_size
        if size is None:
            return
        last = size - 1
        try:
            if "logit_bias" in self._info.features:
                await self._decode({"sampling": _greedy_sampling(logit_bias={last: 1.0})}, [0])
            await self._decode({"sampling": _greedy_sampling(max_tokens=1)}, [last])
        except Invalid as error:
            raise Invalid(
                f"the inference server has another model than the directory: it refuses token "
                f"{last} of a vocabulary of {size}: {error}",
                param="engine_url",
            ) from error

    async def _try(
        self, feature: str, fields: Mapping[str, Any], honours: "Honours | None"
    ) -> str | None:
        """Tries a feature. Returns why the server lacks it; None: it has it, or its effect cannot
        be seen. Raises EngineFailed where the server is too busy for the trial."""
        for _ in range(ATTEMPTS):
            try:
                output = await self._decode(self._with_greedy(fields))
            except (Invalid, BadAnswer) as error:
                return str(error)
            except TurnwireError as error:
                # Salts separate tenants: their absence must be certain.
                if isinstance(error, Overloaded) or feature == "salt":
                    raise _not_tried(feature, error) from error
                return str(error)
            if honours is None or honours(output, self._greedy):
                return None
        return _IGNORED

    async def _distrust_salts(self) -> str | None:
        """Why prompts of unequal salts may share blocks; None: they do not."""
        plain = await self._decode()
        other = await self._decode({"cache_salt": "another"})
        again = await self._decode({"cache_salt": "another"})
        if None in (plain.cached, other.cached, again.cached):
            return _NO_CACHED
        if other.cached:
            return "unequal salts share blocks"
        shares = bool(plain.cached) or self._info.block_tokens is not None
        if shares and not again.cached:
            return "cannot be verified: the inference server did not find a prompt again"
        return None

    async def _ignores_seed(self) -> bool:
        """Whether two requests with one seed never give the same tokens."""
        sampling = _greedy_sampling(temperature=2.0, seed=7)
        for _ in range(ATTEMPTS):
            first = await self._decode({"sampling": sampling})
            second = await self._decode({"sampling": sampling})
            if first.ids == second.ids:
                return False
        return True

    async def _scales_logprobs(self) -> bool:
        """Whether log probabilities depend on the temperature, which those of the model's own
        distribution do not."""
        # With min-p 1 any temperature chooses the greedy token, and yet no greedy sampler runs.
        values = []
        for temperature in (1.0, 2.0):
            sampling = _greedy_sampling(temperature=temperature, min_p=1.0, logprobs=0)
            output = await self._decode({"sampling": sampling})
            values.append(output.logprobs[0][0][1])
        return abs(values[0] - values[1]) > _NOISE

    def _with_greedy(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields, with the first greedy token as the one that is biased, or that must not stop
        the turn."""
        sampling: Sampling | None = fields.get("sampling")
        first = self._greedy[0]
        if sampling is not None and sampling.logit_bias:
            return {"sampling": _greedy_sampling(logit_bias={first: _BANNED})}
        if sampling is not None and sampling.min_tokens:
            return {**fields, "stop_ids": [first]}
        return fields

    async def _decode(
        self, fields: Mapping[str, Any] | None = None, prompt: Sequence[int] | None = None
    ) -> TrialOutput:
        """Decodes one request. Raises its error."""
        self._number += 1
        made = {"sampling": _greedy_sampling(), "stop_ids": [], **(fields or {})}
        ids = list(prompt or self._prompt)
        request = EngineRequest(f"trial-{self._number}", ids, **made)
        return await decode_trial(self._engine, request)


Honours = Callable[[TrialOutput, Sequence[int]], bool]
"""Whether an output, beside the greedy tokens, shows that the feature was honoured."""


def _not_tried(feature: str, error: TurnwireError) -> EngineFailed:
    """The error of a start in which nothing was learned of a feature."""
    return EngineFailed(f"the trial of {feature} failed: {error}")


def _greedy_sampling(**more: Any) -> Sampling:
    return Sampling(**{"max_tokens": OUTPUT_TOKENS, "temperature": 0.0, **more})


def _has_logprobs(output: TrialOutput, _: Sequence[int]) -> bool:
    return len(output.logprobs) == len(output.ids)


def _has_others(output: TrialOutput, _: Sequence[int]) -> bool:
    return bool(output.logprobs) and len(output.logprobs[0]) > 1


def _differs(output: TrialOutput, greedy: Sequence[int]) -> bool:
    return output.ids[:1] != list(greedy[:1])


def _is_whole(output: TrialOutput, _: Sequence[int]) -> bool:
    return len(output.ids) == OUTPUT_TOKENS


def _is_greedy(output: TrialOutput, greedy: Sequence[int]) -> bool:
    return output.ids == list(greedy)


_FEATURES: Mapping[str, tuple[Mapping[str, Any], Honours | None]] = {
    # Of one candidate, any temperature chooses the greedy token.
    "sampling": ({"sampling": _greedy_sampling(temperature=1.0, top_k=1)}, _is_greedy),
    "seed": ({"sampling": _greedy_sampling(temperature=1.0, seed=7)}, None),
    "min_p": ({"sampling": _greedy_sampling(temperature=1.0, min_p=1.0)}, _is_greedy),
    "penalties": ({"sampling": _greedy_sampling(presence_penalty=0.5)}, None),
    "min_tokens": ({"sampling": _greedy_sampling(min_tokens=OUTPUT_TOKENS)}, _is_whole),
    "logit_bias": ({"sampling": _greedy_sampling(logit_bias={0: _BANNED})}, _differs),
    "logprobs": ({"sampling": _greedy_sampling(logprobs=0)}, _has_logprobs),
    "top_logprobs": ({"sampling": _greedy_sampling(logprobs=2)}, _has_others),
    "guided": ({"guided": OutputFormat("json_object")}, None),
    "grammar": ({"grammar": 'start: "a" "b" "c"'}, None),
    "priority": ({"priority": 1.0}, None),
    "salt": ({"cache_salt": "salt"}, None),
}
"""The request of each feature, and whether its output shows the feature; None: it cannot be
seen."""
