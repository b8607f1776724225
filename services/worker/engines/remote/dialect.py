"""The interface between an engine and the token interface of one kind of inference server.

A dialect is one module: it reads a server's properties, makes the body of a request, and reads the
events of the answer. It does not judge them (`answer.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from urllib.parse import urlsplit
from zlib import crc32

from msgspec import Raw, Struct

from schemas.errors import EngineFailed
from schemas.events import UNKNOWN_WEIGHTS, FinishReason
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineRequest
from services.worker.engines.remote.http import ServerHttp


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
    """As in `EngineInfo`; 1 also where a server may drop the last block."""
    lacking: Mapping[str, str] = {}
    """Features that the dialect or the server's settings exclude, and why."""
    experts: bool = False
    """Requests ask for the experts to which their tokens were routed."""


class Call(Struct, frozen=True):
    """One POST."""

    path: str
    body: dict[str, Any]


class TurnEnd(Struct, frozen=True):
    """Why a server ended a turn."""

    reason: FinishReason
    stop_id: int | None = None
    """The token at which it stopped; None: with another reason."""
    stop_logprobs: list[tuple[int, float]] | None = None


class Counts(Struct, frozen=True):
    """A server's own counts of a turn, which show what is lost on the way."""

    prompt: int
    output: int
    """Tokens up to here, with the one that ended the turn."""


NO_EXPERTS = Raw(b"null")


class LabeledSpan(Struct):
    """Tokens of the output that weights with one label have decoded, as vLLM and SGLang send it."""

    version: str
    start: int
    end: int


class Chunk(Struct):
    """The content of one event."""

    ids: list[int] = []
    """New tokens, without the one that ended the turn."""
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    end: TurnEnd | None = None
    closes: bool = False
    """The connection is closed after this event, with which the reader ends a turn that the server
    would go on with."""
    counts: Counts | None = None
    cached: int | None = None
    """Prompt tokens that the server found in its cache."""
    prompt_ids: list[int] = []
    """The prompt as the server has it, with what it made of the placeholders of images; empty:
    not reported."""
    weights: list[LabeledSpan] | None = None
    """With `end`: which weights have decoded the turn; None: not reported."""
    experts: Raw = NO_EXPERTS
    """With `end`: the experts to which its tokens were routed, a JSON string in base64."""


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
    """What a server says of its weights."""

    version: int
    paused: bool
    """It decodes nothing until it is resumed."""


class BadAnswer(EngineFailed):
    """A server's answer is not what the interface promises. It ends the turn: its tokens could be
    wrong."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the inference server sent a broken answer: {what}")


class ChunkReader(Protocol):
    """Reads the events of one turn, in order."""

    def read(self, data: bytes) -> Chunk:
        """Returns the content of an event. Raises BadAnswer if it cannot be read, EngineFailed for
        an error that the server reports in the stream, Refused for one with a status."""
        ...


class Dialect(Protocol):
    """One kind of server."""

    name: str
    """The engine's name in settings."""
    shares_queued: bool
    """As `EngineInfo.shares_queued`."""
    flags: Mapping[str, str] = {}
    """The server's flag for a feature that only a trial finds missing, by feature."""
    closes_streams: bool
    """The server closes the connection of a stream, whatever its answer promises."""
    experts_suffix: str = ""
    """That of a file with the bytes of `Chunk.experts`."""

    async def describe(self, http: ServerHttp) -> ServerFacts:
        """Reads the properties of the server. Raises Unreachable, Refused, and Invalid where it has
        no token interface, with the setting that it misses."""
        ...

    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        """Has the server encode a text, without special tokens. Returns None if it was started
        without a tokenizer. Raises Unreachable, Refused."""
        ...

    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> Call:
        """Makes the request of a turn. `ids`: the request's prompt, or all but its last token, with
        one placeholder for each image. Raises Invalid for what the interface cannot express."""
        ...

    def reader(self, request: EngineRequest, call: Call) -> ChunkReader:
        """Returns the reader of the answer to `call`."""
        ...

    def streaming(self, http: ServerHttp) -> AbstractAsyncContextManager[None]:
        """Returns the context of each turn's stream, in which the server may be waited for."""
        ...

    def abort(self, call: Call) -> Call | None:
        """Makes the request that ends the turn of `call`; None: closing the connection ends it."""
        ...

    async def pulse(self, http: ServerHttp) -> Pulse:
        """Requests a sign of life. Raises Unreachable, Refused."""
        ...


class UpdatableServer(Protocol):
    """A dialect of servers with weights that can change. All methods raise Unreachable and
    Refused."""

    weights_need: str
    """What a server without the routes is started with."""

    async def weights(self, http: ServerHttp) -> WeightsState | None:
        """Asks for the weights; None: the server has none of these routes."""
        ...

    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        """Returns when the server decodes nothing, and has ended its turns or keeps them."""
        ...

    async def resume(self, http: ServerHttp) -> None:
        """Goes on."""
        ...

    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        """Loads other weights while the server is paused. Its turns are computed again from their
        prompts on. Raises EngineFailed if it has the old ones still, EngineDied if they are not
        known."""
        ...


START_LABEL = "default"
"""The label of the weights that vLLM and SGLang start with."""
_MOST_DIGITS = 18
PAUSE_S = 120.0
"""How long a pause may take: a step, or the end of all turns."""
UPDATE_S = 1800.0
"""How long other weights may take."""


def version_of(label: str) -> int:
    """The version that a server's label says. Each label without a number has a version below
    `UNKNOWN_WEIGHTS`, so that its prompts share no KV blocks with those of another one."""
    if label == START_LABEL:
        return 0
    is_number = label.isdecimal() and len(label) <= _MOST_DIGITS
    return int(label) if is_number else UNKNOWN_WEIGHTS - 1 - crc32(label.encode())


def event_host(url: str) -> str:
    """The host of a server in the ZMQ address of its KV events."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


class ListedModel(Struct):
    """A model in the list of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    """The model of a LoRA adapter; None: it is none."""
    max_model_len: int | None = None


class _Models(Struct):
    data: list[ListedModel]


async def list_models(http: ServerHttp) -> list[ListedModel]:
    """The model under each of its names, and its LoRA adapters, also those loaded since the start:
    `/v1/models` of vLLM 0.32.0 (`entrypoints/openai/models/serving.py`) and SGLang 0.5.23
    (`srt/entrypoints/http_server.py`). Raises Unreachable, Refused."""
    models: _Models = await http.json("/v1/models", kind=_Models)
    return models.data


async def list_adapters(http: ServerHttp) -> list[str]:
    """The names of the LoRA adapters among them. Raises as `list_models`."""
    return [model.id for model in await list_models(http) if model.parent is not None]
