"""Control messages between the services: heartbeats, credit, replay requests, cancellation, engines
and their KV caches."""

from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from schemas.errors import ErrorInfo

Stage: TypeAlias = Literal["frontend", "preprocessor", "worker", "parser"]
INNER_STAGES: Final[tuple[Stage, ...]] = ("preprocessor", "worker", "parser")
"""The stages that a turn needs after the frontend, in the order of its messages."""


THINKING_BUDGET: Final = "thinking_budget"
"""The feature of ending thoughts at a budget: of a worker with any engine, and of a preprocessor
that can name the markers of its model's reasoning."""


VISION: Final = "vision"
"""The feature of images in prompts: of a worker with an engine that takes them, and of a
preprocessor that has the model's processor."""


AGENT_TOKENS = 24_000
"""Tokens of a large agent's prompt before the user's first word, and of an answer. Claude Code's
prompt has 16,000. Coding agents cannot work in a smaller context window."""


class ModelCard(Struct, frozen=True, omit_defaults=True):
    """A served model as its preprocessor and worker describe it, and as `/v1/models` lists it."""

    name: str
    aliases: list[str] = []
    max_model_len: int = 0
    """Context window in tokens, prompt and output together."""
    created: int = 0
    """Unix time in seconds."""
    family: str = ""
    """The parser family."""
    max_output_tokens: int = 0
    """Longest answer in tokens; 0: whatever the window leaves."""
    reasoning: bool = False
    efforts: list[str] = []
    """Levels of reasoning effort that the template or `effort_budgets` know, least first."""
    effort_budgets: dict[str, int] = {}
    """The operator's budget of reasoning tokens for a level of effort."""
    switchable: bool = False
    """Reasoning can be turned off."""
    tools: bool = False
    features: list[str] = []
    """Features of the engine: logprobs, guided, prefix_cache, kv_events, priority, salt, seed, …
    From a preprocessor: `THINKING_BUDGET` and `VISION`."""
    engine: str = ""
    block_tokens: int = 0
    """Tokens in a KV block of the engine; 0: no prefix cache, or unknown."""
    raw_prompts: bool = False
    """The worker reads requests of `requests.encode_generate`; workers of older releases read only
    JSON."""
    shares_queued: bool = False
    """The engine computes the common beginning of queued prompts once, so that no turn is held for
    it."""
    weight: float = 1.0
    """This model's share of the new sessions for an alias that several models have."""
    adapters: list[str] = []
    """From a worker: the names of the LoRA adapters that its engine has now."""
    passes_adapters: bool = False
    """The preprocessor reads `Conversation.adapter`; those of older releases would drop it."""
    weights_version: int = 0
    """From a worker: the version of its weights, as its operator numbers them; 0: those that it has
    started with. In frontends the newest of all workers."""
    adapter: str = ""
    """Only in frontends: the card describes `name` with this LoRA adapter. "": without one."""

    @property
    def served_name(self) -> str:
        """The name under which clients find the model, beside its aliases."""
        return f"{self.name}:{self.adapter}" if self.adapter else self.name


class ToolWeight(Struct, frozen=True):
    """The part of a prompt that definitions of tools take."""

    tokens: int
    """Tokens of the definitions at its start, about."""
    prompt: int
    """Tokens of the whole prompt."""
    client: str
    """The first word of the client's user agent."""


class Load(Struct, frozen=True, omit_defaults=True):
    """The load of a process. For workers `slots` is how many turns decode at once, `queue_limit`
    how many may wait."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    queue_limit: int = 0
    kv_used: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    tools: ToolWeight | None = None
    """The tools that took most in a prompt of the last hour, if the process makes prompts."""


class Heartbeat(Struct, frozen=True, omit_defaults=True):
    """Sent by every process each second, and on change. A process that misses three in a row is
    considered dead."""

    stage: Stage
    id: str
    """Unique per start."""
    number: int = 0
    """1, 2, 3 …, so that a process recognizes its own heartbeats when they come back."""
    models: list[ModelCard] = []
    draining: bool = False
    """Finishes its turns and accepts no new ones."""
    leaving: bool = False
    """The last heartbeat: the process has left."""
    load: Load = Load()
    window_bytes: int = field(default=0, name="window")
    """Bytes of frames that a sender may have in flight to this process before its first credit."""
    sent: dict[str, int] = {}
    """Last `seq` sent to each receiver: shows a receiver that the last frames were lost. A receiver
    that is missing here has nothing in flight: it is new, or was considered dead and its streams
    are elsewhere."""
    unacknowledged: dict[str, int] = field(default_factory=dict, name="owed")
    """Last `seq` acknowledged by each receiver that has not acknowledged everything: shows it that
    a `Credit` was lost."""
    replays: dict[str, int] = {}
    """`number` of the last `Replay` handled, by receiver: shows a receiver that its request was
    lost."""
    version: str = ""
    host: str = ""
    pid: int = 0
    time: float = 0.0
    """When it was sent: Unix time in seconds."""
    mac: str = ""
    """HMAC-SHA256, in hexadecimal, of the message without this field, which is the last one."""


class Credit(Struct, frozen=True, omit_defaults=True):
    """receiver → sender: frames up to `seq` are handled or given up; `window_bytes` may be in
    flight."""

    receiver: str
    seq: int
    window_bytes: int = field(name="window")
    replays_requested: int = field(default=0, name="asked")
    """`number` of the last `Replay` before this credit. It covers the frames that were given up: a
    sender that has not handled it must not consider them delivered."""


class StreamPosition(Struct, frozen=True, omit_defaults=True):
    """A receiver's position in one stream: it has everything before. In token streams `offset`
    counts output tokens; in event streams it counts characters of `block`."""

    turn: str
    attempt: int
    offset: int = 0
    block: int = 0
    tokens: int = 0
    """In event streams: how many ids came in `OutputTokens`."""


class Replay(Struct, frozen=True, omit_defaults=True):
    """receiver → sender: send these streams again from these positions. `all`: and every other
    stream from 0."""

    receiver: str
    streams: list[StreamPosition] = []
    all: bool = False
    number: int = 0
    """1, 2, 3 … per receiver and sender; the sender's heartbeats have the last one handled."""


class Cancel(Struct, frozen=True, omit_defaults=True):
    """Fan-out: stop this turn's attempts up to `attempt`."""

    turn: str
    attempt: int
    reason: Literal[
        "hangup",
        "slow_reader",
        "stop_string",
        "calls",
        "superseded",
        "timeout",
        "frontend_gone",
        "failed",
        "unreadable",
    ]
    """`hangup`: the frontend does not need the turn any more. `failed`: the turn failed in its
    parser. `unreadable`: a shard could not parse the stream's context; the worker reports it to the
    frontend. Releases up to 0.2.0 read no other reasons, and ignore a cancel with one."""


EngineAction: TypeAlias = Literal["pause", "resume", "weights"]


class EngineControl(Struct, frozen=True, omit_defaults=True):
    """frontend → one worker: pause or resume the engine, or load other weights."""

    action: EngineAction
    mode: Literal["keep", "abort"] = "keep"
    """`pause`: `keep`: open turns wait and go on; `abort`: they end with an error that clients
    retry."""
    source: str = ""
    """`weights`: the path of the new ones, below the worker's `weights_dir`, or what the inference
    server's own route takes."""
    version: int = 0
    """`weights`: the number of the new ones, greater than that of the old. A worker that has loaded
    this version from this source has done it already."""


class EngineState(Struct, frozen=True):
    """The reply to an `EngineControl`: the state after it."""

    worker: str = field(name="id")
    weights_version: int = 0
    paused: bool = False
    """Whether Turnwire or others have paused its engine."""
    error: ErrorInfo | None = None
    """Why the worker did not do it."""


class KvUpdate(Struct, frozen=True, omit_defaults=True):
    """worker → preprocessors: changes of the KV blocks that it holds. `cleared` applies first, then
    `removed`, then `stored`.

    A block's key is a hash of all tokens from the prompt's start to the block's end, and of the
    salt. All processes compute the same keys (`tokenization.block_keys`); an engine's own hashes
    stay in its worker.
    """

    worker: str
    seq: int
    """1, 2, 3 … per worker. A receiver that misses one requests a `KvSnapshot`."""
    stored: bytes = b""
    """Packed keys (`block_keys.pack`)."""
    removed: bytes = b""
    cleared: bool = False
    ends: bool = False
    """The keys are those of the last blocks of beginnings that the engine can reuse; it can reuse
    nothing that ends elsewhere. Models with states or windows have few of them."""
    offloaded: bytes = b""
    """Blocks that a slower memory of the worker has from now on, whether its cache has them or
    not."""
    unloaded: bytes = b""
    """Blocks that left the slower memory."""


class KvSnapshot(Struct, frozen=True, omit_defaults=True):
    """A worker's reply: every block that it holds, as of `KvUpdate` number `seq`."""

    worker: str
    seq: int
    keys: bytes
    ends: bool = False
    """The keys are those of reusable beginnings, as in `KvUpdate`."""
    offloaded: bytes = b""
    """All blocks in the slower memory."""
