"""The interface between an engine and the token interface of one kind of inference server.

A dialect is one module: it reads a server's properties, makes the body of a request, and reads the
events of the answer. It does not judge them (`answer.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from msgspec import Struct

from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineRequest
from services.worker.engines.remote.event_reader import EventReader
from services.worker.engines.remote.http import ServerHttp

PAUSE_S = 120.0
"""How long a pause may take: a step, or the end of all turns."""
UPDATE_S = 1800.0
"""How long other weights may take."""


class ServerFacts(Struct, frozen=True):
    """The properties of a server at the start."""

    version: str
    model: str
    """The name that requests give for the model."""
    root: str
    """The directory or hub id that the server has loaded; "": not reported."""
    max_model_len: int | None
    """Context window in tokens; None: not reported."""
    block_tokens: int | None
    """Tokens in a KV block; None: it shares no prefixes."""
    kv_tokens: int | None = None
    """Capacity of the KV cache in tokens; None: not reported."""
    slots: int | None = None
    """Turns that decode at once; None: not reported."""
    kv_endpoint: str | None = None
    """The ZMQ address of its KV events; None: it publishes none."""
    recomputed_blocks: int = 0
    """How many of the last blocks of a prompt are computed again; 1 also where a server may drop
    the last block."""
    lacking: Mapping[str, str] = {}
    """Features that the dialect or the server's settings exclude, and why."""
    experts: bool = False
    """Requests ask for the experts to which their tokens were routed."""


class ServerRequest(Struct, frozen=True):
    """One POST."""

    path: str
    body: dict[str, Any]


class Pulse(Struct, frozen=True):
    """A sign of life."""

    started: float = 0.0
    """Differs after the server was started again."""
    steps: float = 0.0
    """Grows while the server computes, and falls only when it is started again; always 0: not
    reported."""
    kv_used: float | None = None
    """Share of the KV cache in use."""
    adapters: Sequence[str] = ()
    """The names of the LoRA adapters that requests may name now."""


class WeightsState(Struct, frozen=True):
    """The weights of a server."""

    version: int
    paused: bool
    """It decodes nothing until it is resumed."""


class Dialect(ABC):
    """One kind of server."""

    name: str
    """The engine's name in settings."""
    shares_queued: bool
    """Whether a prompt finds what those before it in the queue compute."""
    flags: Mapping[str, str] = {}
    """The server's flag for a feature that only a trial finds missing, by feature."""
    closes_streams = False
    """The server closes the connection of a stream, whatever its answer promises."""
    experts_suffix = ""
    """That of a file with the bytes of `AnswerChunk.experts`."""
    weights_need = "vLLM or SGLang in its place"
    """The end of the error for a server that cannot be paused: "it needs …"."""

    @abstractmethod
    async def describe(self, http: ServerHttp) -> ServerFacts:
        """Reads the properties of the server. Raises Unreachable, HttpRefusal; Invalid if it has no
        token interface, with the setting that it misses."""

    @abstractmethod
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        """Has the server encode a text, without special tokens. Returns None if it was started
        without a tokenizer. Raises Unreachable, HttpRefusal."""

    @abstractmethod
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> ServerRequest:
        """Makes the request of a turn. `ids`: the request's prompt, or all but its last token, with
        one placeholder for each image. Raises Invalid for what the interface cannot express."""

    @abstractmethod
    def reader(self, request: EngineRequest, call: ServerRequest) -> EventReader[Any]:
        """Returns the reader of the answer to `call`."""

    def streaming(self, http: ServerHttp) -> AbstractAsyncContextManager[None]:
        """Returns the context of each turn's stream, in which the server may be waited for."""
        return nullcontext()

    def abort(self, call: ServerRequest) -> ServerRequest | None:
        """Makes the request that ends the turn of `call`; None: closing the connection ends it."""
        return None

    @abstractmethod
    async def pulse(self, http: ServerHttp) -> Pulse:
        """Requests a sign of life. Raises Unreachable, HttpRefusal."""

    # -- weights that change

    async def weights(self, http: ServerHttp) -> WeightsState | None:
        """Requests the state of the weights; None: they cannot change, and the next three methods
        are not called. Raises Unreachable, HttpRefusal."""
        return None

    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        """Returns when the server decodes nothing, and has ended its turns or keeps them. Raises
        Unreachable, HttpRefusal."""
        raise NotImplementedError

    async def resume(self, http: ServerHttp) -> None:
        """Goes on. Raises Unreachable, HttpRefusal."""
        raise NotImplementedError

    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        """Loads other weights while the server is paused. Its turns are computed again from their
        prompts on. Raises EngineFailed if it has the old ones still; EngineDied, Unreachable or
        HttpRefusal if they are not known."""
        raise NotImplementedError
