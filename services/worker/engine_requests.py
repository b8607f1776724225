"""Makes the engine's requests from those of preprocessors."""

from collections.abc import Sequence
from math import inf

import msgspec
from msgspec import Struct

from schemas.conversation import OutputFormat, Sampling
from schemas.requests import GenerateRequest
from schemas.token_ids import pack_ids, unpack_array, unpack_ids
from services.tokenization.block_keys import TOKEN_ID_BYTES, weights_salt, with_images
from services.worker.engine import (
    Engine,
    EngineImage,
    EngineInfo,
    EngineRequest,
    UpdatableEngine,
)
from services.worker.engine_checks import check
from services.worker.kv.prompt_blocks import AssumedBlocks, PromptBlocks
from services.worker.kv.publisher import Kv
from services.worker.retention import RetentionQuota
from services.worker.thinking.thought_counter import ThoughtCounter

CONTINUED_PRIORITY = 1.0
"""Added to the priority of a turn that had a slot before its thought was ended: it goes before
those that wait."""

_decode_form = msgspec.json.Decoder(OutputFormat | None).decode


class DecodingPlan(Struct, frozen=True):
    """The work of the engine for one attempt at a turn."""

    request: GenerateRequest
    first: EngineRequest
    """The engine's request; others follow if thoughts are ended."""
    resume: list[int]
    """Output of earlier attempts, and the end of a thought that had spent its budget."""
    blocks: PromptBlocks
    """The blocks of the prompt with `resume`."""
    counter: ThoughtCounter | None
    """None: reasoning has no budget."""

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens, without output of an earlier attempt."""
        return prompt_tokens(self.request)


def prompt_tokens(request: GenerateRequest) -> int:
    """The number of a prompt's tokens."""
    return len(request.prompt) // TOKEN_ID_BYTES


class EngineRequests:
    """Makes requests for one engine."""

    def __init__(self, engine: Engine, info: EngineInfo, kv: Kv) -> None:
        """`info`: that of the engine."""
        self._info = info
        self._weights: UpdatableEngine | None = None
        if isinstance(engine, UpdatableEngine) and "salt" in info.features:
            self._weights = engine
        self._kv = kv
        self._retention = RetentionQuota(0)
        if "retention" in info.features:
            self._retention = RetentionQuota(info.kv_tokens)

    def plan(
        self, request: GenerateRequest, images: Sequence[EngineImage], now: float
    ) -> DecodingPlan:
        """Plans an attempt. `now`: the loop's time. Raises as `check`."""
        resume = unpack_ids(request.resume)
        counter = None
        if request.thought_budget is not None:
            counter = ThoughtCounter(request.thought_budget)
            room = max((request.sampling.max_tokens or 0) - len(resume), 0)
            resume += counter.resume(resume)[:room]

        prompt = request.prompt + pack_ids(resume)
        salt = self._salt(request)
        blocks = self._kv.look_up(with_images(prompt, request.images), salt)
        sampling = request.sampling
        if resume:
            sampling = self._rest_of_sampling(sampling, len(resume), counter)
        grammar = request.grammar if "grammar" in self._info.features else ""
        engine_request = EngineRequest(
            id=f"{request.turn}.{request.attempt}",
            token_ids=unpack_array(prompt),
            sampling=sampling,
            stop_ids=self._stop_ids(request),
            priority=request.priority,
            cache_salt=salt,
            guided=_decode_form(request.guided),
            grammar=grammar,
            resumed=len(resume),
            retain_s=self._retain_s(request, prompt, blocks, now),
            session=request.session,
            trace=request.trace,
            block_keys=blocks.keys if isinstance(blocks, AssumedBlocks) else None,
            images=images,
            adapter=request.adapter,
        )
        check(engine_request, self._info)
        return DecodingPlan(request, engine_request, resume, blocks, counter)

    def plan_again(self, earlier: DecodingPlan, now: float) -> DecodingPlan:
        """Returns the plan of an attempt that has not started, for the weights of now. Raises as
        `plan`."""
        plan = self.plan(earlier.request, earlier.first.images, now)
        version = 0 if self._weights is None else self._weights.weights_version
        # the engine may still hold the stopped one under its id
        first = msgspec.structs.replace(plan.first, id=f"{plan.first.id}.w{version}")
        return msgspec.structs.replace(plan, first=first)

    def record_opened(self, plan: DecodingPlan, now: float) -> None:
        """Records that the engine has opened a turn, and retains its prompt if that was planned.
        `now`: the loop's time."""
        if plan.first.retain_s:
            tokens = len(plan.first.token_ids)
            self._retention.record(plan.request, tokens, plan.blocks.cached or 0, now)

    def rest(
        self, first: EngineRequest, output: Sequence[int], counter: ThoughtCounter
    ) -> EngineRequest:
        """Returns the request for the rest of a turn, after a thought that was ended.

        `first`: that of this attempt; `output`: all of the turn so far, with the end of the
        thought.
        """
        prompt = first.token_ids[: len(first.token_ids) - first.resumed]
        done = len(output) - first.resumed
        priority = first.priority
        if "priority" in self._info.features:
            priority += CONTINUED_PRIORITY
        return msgspec.structs.replace(
            first,
            # the engine may still hold the stopped one under its id
            id=f"{first.id}.{len(output)}",
            token_ids=unpack_array(pack_ids(prompt) + pack_ids(output)),
            sampling=self._rest_of_sampling(first.sampling, done, counter),
            priority=priority,
            rest_grammar=counter.rest_grammar if first.grammar else "",
            resumed=len(output),
            block_keys=None,
        )

    def _salt(self, request: GenerateRequest) -> str | None:
        """Returns the salt for the weights that are in use now."""
        if self._weights is None or request.any_weights:
            return request.cache_salt
        return weights_salt(self._weights.weights_version, request.cache_salt)

    def _stop_ids(self, request: GenerateRequest) -> list[int]:
        """Returns the stop ids that the weights have rows for: the tokenizer may have more, and
        engines use them as indexes."""
        most = self._info.vocab_size or inf
        return [token for token in request.stop_ids if token < most]

    def _retain_s(
        self, request: GenerateRequest, prompt: bytes, blocks: PromptBlocks, now: float
    ) -> int:
        tokens = len(prompt) // TOKEN_ID_BYTES
        return self._retention.seconds(request, tokens, blocks.cached or 0, now)

    def _rest_of_sampling(
        self, sampling: Sampling, done: int, counter: ThoughtCounter | None
    ) -> Sampling:
        """Returns the sampling of the rest of a turn, after `done` output tokens."""
        most = (sampling.max_tokens or 0) - done
        least = sampling.min_tokens
        if least is not None:
            least = max(least - done, 0)
        sampling = msgspec.structs.replace(sampling, max_tokens=max(most, 0), min_tokens=least)
        # An engine without biases has each further thought ended.
        if counter is not None and "logit_bias" in self._info.features:
            bias = {**sampling.logit_bias, **counter.bans}
            sampling = msgspec.structs.replace(sampling, logit_bias=bias)
        return sampling


def offered_adapters(engine: Engine, info: EngineInfo) -> list[str]:
    """Returns the LoRA adapters that requests may name. Adapters may come and go while the engine
    runs."""
    shares_all = info.block_tokens is not None and "salt" not in info.features
    if shares_all:  # blocks whatever their salts, so also those of different adapters
        return []
    return [name for name in engine.adapters() if name and name.isprintable()]
