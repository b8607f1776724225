"""The engine contract: token ids in, token ids out.

An engine handles neither text, tools, reasoning, HTTP nor the bus. `open` starts a turn; the engine then calls the
turn's sink on the event loop, once per engine step at most: no task, future or iterator stands between a step and its
frame. What every engine must do is written here once and checked by one conformance suite
(`tests/worker/conformance.py`):

- the sink is called only after `open` has returned: with deltas, then with exactly one end, which is a `Delta` with
  `finish`, or `fail`; nothing follows, and ids are never taken back;
- closing the handle stops the decoding without awaiting anything, and the sink is called no more;
- a request that cannot be decoded is `Invalid`, raised by `open` or passed to `fail` before the first delta; a failure
  of this request alone is `EngineFailed`; the death of the engine is `EngineDied` in every open turn, once each, and
  for good;
- the end token is not among `ids`: it is reported as `stop_id`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from schemas.control import Load
from schemas.conversation import OutputFormat, Sampling
from schemas.errors import EngineFailed, TurnwireError
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig

LOWEST_LOGPROB = -9999.0
"""Stands for the log probability of an impossible token: JSON has no infinity. The value of OpenAI's API."""


class EngineDied(EngineFailed):
    """The whole engine is gone: every open turn fails and the worker leaves."""


# -- requests -----------------------------------------------------------------------------------------------------


class SamplingField(NamedTuple):
    """What a field of `Sampling` requires of engine and value."""

    feature: str
    """In `EngineInfo.features`, unless the value is absent or neutral."""
    low: float
    high: float
    neutral: tuple[Any, ...] = ()
    """Values that change nothing."""


SAMPLING_FIELDS: Mapping[str, SamplingField] = {
    "temperature": SamplingField("sampling", 0.0, 100.0, (0.0,)),
    "top_p": SamplingField("sampling", 0.0, 1.0, (1.0,)),
    "top_k": SamplingField("sampling", -1, 2**31 - 1, (0, -1, 1)),
    "min_p": SamplingField("min_p", 0.0, 1.0, (0.0,)),
    "seed": SamplingField("seed", -(2**63), 2**64 - 1),
    "presence_penalty": SamplingField("penalties", -100.0, 100.0, (0.0,)),
    "frequency_penalty": SamplingField("penalties", -100.0, 100.0, (0.0,)),
    "repetition_penalty": SamplingField("penalties", 1e-3, 100.0, (1.0,)),
    "min_tokens": SamplingField("min_tokens", 0, 2**31 - 1, (0,)),
    "logit_bias": SamplingField("logit_bias", -100.0, 100.0, ({},)),
    "logprobs": SamplingField("logprobs", 0, 1000),
}
"""Everything of `Sampling` that changes which tokens an engine chooses or reports; beyond the ranges engines fail in
their own ways, some by dying. `max_tokens` is always set, stop ids have a field of their own in `EngineRequest`, and
stop strings are the parser's."""


FEATURES = frozenset(
    {field.feature for field in SAMPLING_FIELDS.values()}
    | {"top_logprobs", "guided", "grammar", "prefix_cache", "kv_events", "priority", "salt"}
)
"""All that an engine can have. top_logprobs: of other tokens than the chosen one; guided: JSON, and JSON of a schema;
grammar: a whole turn by a grammar of llguidance."""


def required_features(sampling: Sampling) -> list[tuple[str, str]]:
    """(field, feature) for every field that is set and not neutral."""
    required = [
        (name, field.feature)
        for name, field in SAMPLING_FIELDS.items()
        if (value := getattr(sampling, name)) is not None and value not in field.neutral
    ]
    return [*required, ("top_logprobs", "top_logprobs")] if sampling.logprobs else required


class EngineInfo(Struct, frozen=True):
    """What an engine has. Known after `start`."""

    name: str
    version: str
    max_model_len: int
    """Context window in tokens, prompt and output together."""
    slots: int
    """Turns that decode at once; more wait."""
    block_tokens: int | None
    """Tokens in a KV block; None: no prefix sharing."""
    kv_tokens: int | None
    """Capacity of the KV cache in tokens; None: not limited, or unknown."""
    eos_ids: list[int]
    features: frozenset[str]
    """Of `FEATURES`."""
    vocab_size: int | None = None
    """Every token id is below it; None: unknown."""
    lacking: Mapping[str, str] = {}
    """Why a feature is not in `features`, where the reason is known."""


class EngineRequest(Struct, frozen=True):
    """One turn to decode. `sampling.max_tokens` is set; 0 means: prefill, then finish with LENGTH."""

    id: str
    token_ids: Sequence[int]
    """The prompt. From the bus it is an array of typecode I: an engine that needs a list makes one."""
    sampling: Sampling
    stop_ids: list[int]
    """Ends decoding, every end-of-sequence id included (unless `sampling.ignore_eos`)."""
    priority: float = 0.0
    """Greater is sooner; 0 is ordinary."""
    cache_salt: str | None = None
    """Only equal salts share KV blocks."""
    guided: OutputFormat | None = None
    grammar: str = ""
    """Of the whole output, the `resumed` part included; "" if it is free, and for engines without the feature."""
    resumed: int = 0
    """How many ids at the end of `token_ids` are output of an earlier attempt. An engine that decodes takes them as
    prompt; one that plays a script continues behind them."""
    block_keys: Sequence[int] | None = None
    """The keys of the prompt's whole blocks (`tokenization.block_keys`), where the worker has computed them."""


class Delta(Struct, gc=False):
    """One turn's result of one engine step. May be empty but for the terminal fields. The lists are not changed
    later."""

    ids: list[int] = []
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    cached: int | None = None
    """Prompt tokens found in the KV cache; set once it is known."""
    finish: FinishReason | None = None
    """STOP, LENGTH or CANCELLED. Errors go to `Sink.fail`."""
    stop_id: int | None = None
    stop_logprobs: list[tuple[int, float]] | None = None
    """As in `logprobs`, of `stop_id`; None: not requested, or the engine has none."""
    waited_s: float | None = None
    """With `cached`: seconds from `open` until the engine began the prefill; None: the engine does not report it."""


# -- the engine ---------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Receives one turn. Neither method raises, blocks or calls the engine back except to close the turn."""

    def put(self, delta: Delta) -> None:
        """Takes one engine step's result."""
        ...

    def fail(self, error: TurnwireError) -> None:
        """Ends the turn with an error, an object of its own."""
        ...


class Handle(Protocol):
    """One open turn, as its opener holds it."""

    def close(self) -> None:
        """Stops the decoding. Does nothing where it has ended."""
        ...


class Engine(Protocol):
    """One engine in one process. `open` and `stop` are called on the loop on which `start` was awaited."""

    async def start(self) -> EngineInfo:
        """Load everything; returns when the first request can be decoded. Blocking work runs off the loop."""
        ...

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        """Decode this. Raises Invalid, EngineFailed or EngineDied where that is known at once; the sink is then never
        called."""
        ...

    def load(self) -> Load:
        """How busy the engine is now. Cheap: called for every heartbeat."""
        ...

    def healthy(self) -> bool:
        """False once the engine has died. Cheap."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Release everything within `grace_s` seconds; open turns end with CANCELLED."""
        ...


class EngineSupport(Struct, frozen=True):
    """What the installed engine can do with a configuration, as far as that is known without a start."""

    version: str
    features: frozenset[str]
    lacking: Mapping[str, str] = {}
    """Feature, and why the engine lacks it."""


@runtime_checkable
class Explainable(Protocol):
    """An engine that `turnwire doctor` can explain."""

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """Raises Invalid, ImportError, ValueError or OSError if the engine could not be started. `config.model` may be
        None."""
        ...


# -- KV events ----------------------------------------------------------------------------------------------------

BlockHash: TypeAlias = int | str
"""An engine's own; it only ties events together, since indexes across engines hash the tokens themselves."""


class BlocksStored(Struct, frozen=True):
    """Blocks that follow each other, behind `parent` (None: from the prompt's start), can be shared from now on."""

    parent: BlockHash | None
    blocks: list[tuple[BlockHash, list[int]]]
    """(the engine's hash, token ids of the whole block)."""
    salt: str | None = None
    rank: int = 0
    """Attention data-parallel rank: each has a cache of its own."""


class BlocksRemoved(Struct, frozen=True):
    """Blocks are gone."""

    hashes: list[BlockHash]
    rank: int = 0


class CacheCleared(Struct, frozen=True):
    """The content of the cache is unknown or empty: it was cleared, or events were lost."""

    rank: int | None = None
    """None: all ranks."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared


@runtime_checkable
class KvEventSource(Protocol):
    """An engine with the feature `kv_events`."""

    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """What the KV cache holds, as it changes, until the engine stops. For one reader."""
        ...
