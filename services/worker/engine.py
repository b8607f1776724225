"""The engine contract: token ids in, token ids out.

An engine knows nothing of text, tools, reasoning, HTTP or the bus. It is asked to decode with `open`, and says what
came of it by calling the turn's sink, on the event loop, once per engine step at most: no task, future or iterator
stands between a step and the frame it goes out in. What every engine must do is written here once and checked by one
conformance suite (`tests/worker/conformance.py`):

- the sink hears nothing before `open` has returned, then deltas, then exactly one end: a `Delta` with `finish`, or
  `fail`; nothing follows it, and ids are never taken back;
- closing the handle stops the decoding; nothing is awaited there, and the sink hears nothing any more;
- a request that cannot be decoded is `Invalid`, raised by `open` or failed with before the first delta; a failure of
  this request alone is `EngineFailed`; the death of the engine is `EngineDied` in every open turn, once each, and for
  good;
- the end token is not among `ids`: it is reported as `stop_id`.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from schemas.control import Load
from schemas.conversation import OutputFormat, Sampling
from schemas.errors import EngineFailed, TurnwireError
from schemas.events import FinishReason
from services.worker.kv_events import KvEvent


class EngineDied(EngineFailed):
    """The whole engine is gone: every open turn fails and the worker leaves."""


class EngineInfo(Struct, frozen=True):
    """What an engine has. Known after `start`."""

    name: str
    """`script`, `transformers`, `trtllm`."""
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
    """Of: sampling, seed, min_p, penalties, min_tokens, logit_bias, logprobs (of the chosen token), top_logprobs (of
    others, too), guided, prefix_cache, kv_events, priority, salt."""
    vocab_size: int | None = None
    """Every token id is below it; None: unknown."""


class EngineRequest(Struct, frozen=True):
    """One turn to decode. `sampling.max_tokens` is set; 0 means: prefill, then finish with LENGTH."""

    id: str
    token_ids: Sequence[int]
    """The prompt. An array of typecode I on the way from the bus: an engine that needs a list makes one."""
    sampling: Sampling
    stop_ids: list[int]
    """Ends decoding, every end-of-sequence id included (unless `sampling.ignore_eos`)."""
    priority: int = 0
    """Greater is sooner; 0 is ordinary."""
    cache_salt: str | None = None
    """Only equal salts share KV blocks."""
    guided: OutputFormat | None = None
    resumed: int = 0
    """How many ids at the end of `token_ids` are output of an earlier attempt. For an engine that decodes they are
    prompt like the rest; one that plays goes on behind them."""
    block_keys: Sequence[int] | None = None
    """The keys of the prompt's whole blocks (`runtime.block_keys`), where the worker has made them."""


class Delta(Struct, gc=False):
    """What one engine step gave one turn. May be empty but for the terminal fields. The lists are not changed later."""

    ids: list[int] = []
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    cached: int | None = None
    """Prompt tokens found in the KV cache; given once it is known."""
    finish: FinishReason | None = None
    """STOP, LENGTH or CANCELLED. For errors there is `Sink.fail`."""
    stop_id: int | None = None


class Sink(Protocol):
    """Who hears of one turn. Neither method raises, blocks or calls the engine back except to close the turn."""

    def put(self, delta: Delta) -> None:
        """One engine step's result."""
        ...

    def fail(self, error: TurnwireError) -> None:
        """The turn ends with an error, an object of its own."""
        ...


class Handle(Protocol):
    """One open turn, as whoever opened it holds it."""

    def close(self) -> None:
        """The turn is not wanted any more. Does nothing where it has ended."""
        ...


class Engine(Protocol):
    """One engine in one process. `open` and `stop` are called on the loop on which `start` was awaited."""

    async def start(self) -> EngineInfo:
        """Load everything; returns when the first request can be decoded. Blocking work is done off the loop."""
        ...

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        """Decode this. Raises Invalid, EngineFailed or EngineDied where that is known at once; the sink then hears
        nothing."""
        ...

    def load(self) -> Load:
        """How busy the engine is now; cheap, called for every beat."""
        ...

    def healthy(self) -> bool:
        """False once the engine has died. Cheap."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Release everything within `grace_s` seconds; open turns end with CANCELLED."""
        ...


@runtime_checkable
class TellsBlocks(Protocol):
    """An engine that tells which KV blocks it holds; with feature `kv_events` it does."""

    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """What the KV cache holds, as it changes, until the engine stops. For one reader."""
        ...
