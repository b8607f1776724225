"""The contract of engines, which turn token ids into token ids.

An engine handles neither text, tools, reasoning, HTTP nor the bus. `open` starts a turn; the engine
then calls the turn's sink on the event loop, at most once per engine step, without a task, future
or iterator between a step and its frame. One conformance suite (`tests/worker/conformance.py`)
checks the rules for every engine:

- the sink is called only after `open` has returned: with deltas, then with exactly one end, which
  is an `EngineDelta` with `finish`, or `fail`; nothing follows, and ids are never taken back;
- closing the handle stops the decoding without awaiting anything, and the sink is no longer called;
- a request that cannot be decoded is `Invalid`, raised by `open` or passed to `fail` before the
  first delta; a failure of this request alone is `EngineFailed`; the permanent death of the engine
  is `EngineDied`, once in every open turn. Any error with the code `ENGINE_DIED` has the turn
  continued by another worker, or by this one;
- the end token is not among `ids`: it is reported as `stop_id`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol, final

from msgspec import Struct

from schemas.control import Load
from schemas.conversation import OutputFormat, Sampling
from schemas.errors import ENGINE_DIED, EngineFailed, TurnwireError
from schemas.events import FinishReason, PromptImage, WeightsSpan
from services.worker.kv.events import KvEvent

KV_LIMIT = "the KV cache holds no more tokens"
LOWEST_LOGPROB = -9999.0
"""The log probability of an impossible token, as in OpenAI's API: JSON has no infinity."""


class EngineDied(EngineFailed):
    """The whole engine has died: every open turn fails and the worker leaves. Other workers can
    continue the turns."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ENGINE_DIED)


def load_failure(model: str, error: Exception) -> EngineFailed:
    """Makes the error of an engine with a library that cannot load the model."""
    return EngineFailed(f"cannot load {model}: {type(error).__name__}: {error}")


# -- requests


class EngineInfo(Struct, frozen=True):
    """The properties of an engine, which `start` returns."""

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
    """A subset of `FEATURES`."""
    vocab_size: int | None = None
    """Greater than every token id; None: unknown."""
    lacking: Mapping[str, str] = {}
    """Why a feature is not in `features`, where the reason is known."""
    full_len: int | None = None
    """The context window of the model or the settings; the KV cache may have room for
    `max_model_len` only."""
    limit: str = KV_LIMIT
    """Why `max_model_len` is less than `full_len`."""
    shares_queued: bool = False
    """A prompt finds what those before it in the queue compute: its blocks are looked up when it is
    scheduled. Not set for TensorRT-LLM: by its `capacityScheduler.cpp` (`beneficialToSkip`) and
    `scheduler_v2.py` this depends on the release, the model's attention windows and the reuse
    policy."""
    recomputed_blocks: int = 0
    """How many of the last blocks that a prompt has in the cache are computed again: 1 with a draft
    model that needs their hidden states."""

    @property
    def room(self) -> int:
        """How many tokens a turn can have, prompt and output together."""
        if self.kv_tokens is None:
            return self.max_model_len
        return min(self.max_model_len, self.kv_tokens)


class EngineImage(PromptImage, frozen=True):
    """An image in a prompt, with its data. The hash differs for different images and tenants."""

    data: bytes
    """PNG, JPEG, WebP or GIF data, which `images.read_pixels` decodes."""


class EngineRequest(Struct, frozen=True):
    """One turn to decode. `sampling.max_tokens` is set; 0: prefill, then finish with LENGTH."""

    id: str
    token_ids: Sequence[int]
    """The prompt. The worker passes an array of typecode I; an engine may make a list of it."""
    sampling: Sampling
    stop_ids: list[int]
    """Ids of the vocabulary that end decoding, with every end-of-sequence id (unless
    `sampling.ignore_eos`)."""
    priority: float = 0.0
    """Greater is sooner; 0 is ordinary."""
    cache_salt: str | None = None
    """Only equal salts share KV blocks."""
    guided: OutputFormat | None = None
    grammar: str = ""
    """Grammar of the whole output, with the `resumed` part; "": none, or an engine without the
    feature."""
    rest_grammar: str = ""
    """Grammar of the output after the `resumed` ids, for a library that starts a grammar at the
    first token that it decodes; "": not known."""
    resumed: int = 0
    """How many ids at the end of `token_ids` are output of an earlier attempt. An engine that
    decodes takes them as prompt; one that plays a script continues after them."""
    retain_s: int = 0
    """Seconds for which prompt and output should be evicted after others, by an engine with
    `retention`; 0: none."""
    session: str = ""
    """A key of the turn's session, for a library that keeps the turns of one together."""
    trace: Mapping[str, str] = {}
    """W3C trace context of a traced turn, for a library that has spans of its own."""
    block_keys: Sequence[int] | None = None
    """The keys of the prompt's whole blocks (`tokenization.block_keys`), where the worker has
    computed them."""
    images: Sequence[EngineImage] = ()
    """The images in the prompt, in order; only for an engine with `vision`."""
    adapter: str = ""
    """A LoRA adapter that decodes, one of `Engine.adapters`; "": none. It is also part of
    `cache_salt`."""


class EngineDelta(Struct, gc=False):
    """One turn's result of one engine step; only the terminal fields may be set. The lists are not
    changed later."""

    ids: list[int] = []
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    cached: int | None = None
    """Prompt tokens found in the KV cache; set once it is known."""
    finish: FinishReason | None = None
    """STOP, LENGTH or CANCELLED; errors are passed to `Sink.fail`."""
    stop_id: int | None = None
    stop_logprobs: list[tuple[int, float]] | None = None
    """The log probabilities of `stop_id`, as in `logprobs`; None: not requested, or the engine has
    none."""
    waited_s: float | None = None
    """Set with `cached`: seconds from `open` to the start of the prefill; None: the engine does not
    report it."""
    weights: int | None = None
    """The version of the weights that decoded `ids` and `stop_id`, where another one decoded the
    turn's tokens before; with a turn's first token, unless it is 0."""
    spans: list[WeightsSpan] | None = None
    """With `finish`: the versions of all tokens of the turn, if the engine knows them only now and
    `weights` was wrong. Places count from the end of its ids: `stop_id` is at 0, the token before
    it at -1."""
    experts: str = ""
    """With `finish`: the file with the experts to which the tokens were routed; "": none."""


# -- the engine


class Sink(Protocol):
    """Receives one turn. Neither method raises, blocks or calls the engine, except to close the
    turn."""

    def put(self, delta: EngineDelta) -> None:
        """Takes one engine step's result."""
        ...

    def fail(self, error: TurnwireError) -> None:
        """Ends the turn with an error that no other turn gets."""
        ...


class Handle(Protocol):
    """One open turn, for the caller that opened it."""

    def close(self) -> None:
        """Stops the decoding. Does nothing after its end."""
        ...


class Engine(ABC):
    """One engine in one process. `open` and `stop` are called on the loop on which `start` was
    awaited."""

    @abstractmethod
    async def start(self) -> EngineInfo:
        """Loads everything; returns when the first request can be decoded. Blocking work runs off
        the loop."""

    @abstractmethod
    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        """Starts a turn. Raises Invalid, EngineFailed or EngineDied if the error is found at once;
        the sink is then never called."""

    @abstractmethod
    def load(self) -> Load:
        """Returns the current load. Cheap: called for every heartbeat."""

    @abstractmethod
    async def stop(self, grace_s: float) -> None:
        """Releases everything within `grace_s` seconds; open turns end with CANCELLED."""

    def death(self) -> str | None:
        """Returns why the engine has died, for the log; None while it lives. Cheap."""
        return None

    @final
    def healthy(self) -> bool:
        """Returns whether the engine lives."""
        return self.death() is None

    def adapters(self) -> Sequence[str]:
        """Returns the names of the LoRA adapters that requests may have now. Cheap: called twice a
        second."""
        return ()

    def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        """Yields the changes of the KV cache until the engine stops, for one reader. Only called if
        the engine has the feature `kv_events`."""
        raise NotImplementedError


class UpdatableEngine(Engine):
    """An engine with weights that can change while it runs. All calls are made on the loop, one at
    a time. An engine without the feature `salt` drops its KV cache with the old weights."""

    @property
    @abstractmethod
    def weights_version(self) -> int:
        """The number of the current weights; 0: those of the start."""

    @property
    def is_paused_elsewhere(self) -> bool:
        """Whether others have paused the engine, as far as is known."""
        return False

    @abstractmethod
    async def pause(self, *, abort: bool) -> None:
        """Returns when no step runs, and none will before `resume`. `abort`: open turns fail with
        Unavailable, else they wait. Further turns can be opened, and wait. Idempotent."""

    @abstractmethod
    async def resume(self, *, only_own: bool = False) -> None:
        """Goes on. Idempotent. `only_own`: an engine that others had paused before this `pause`
        stays paused."""

    @abstractmethod
    async def update_weights(self, source: str, version: int) -> None:
        """Loads the weights of `source` while the engine is paused. Tokens decoded afterwards are
        of `version`.

        Raises Invalid for a source that does not fit the model, EngineFailed if it could not be
        loaded: the old weights are then still in use; EngineDied if they are not.
        """


class EngineSupport(Struct, frozen=True):
    """The features of the installed engine with a configuration, found without a start, for
    `turnwire doctor`.

    An engine's class returns it from a static method, `explain(config)`, if it has one.
    `config.model` may be None. The method raises Invalid, ImportError, ValueError or OSError if the
    engine could not be started.
    """

    version: str
    features: frozenset[str]
    lacking: Mapping[str, str] = {}
    """Why the engine lacks a feature, by feature."""
    max_model_len: int | None = None
    """Context window in tokens; None: unknown before the start."""
