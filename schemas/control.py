"""What keeps the pipeline together: who is there, who may send how much, what to stop, what to send again."""

from typing import Literal, TypeAlias

from msgspec import Struct

Stage: TypeAlias = Literal["frontend", "preprocessor", "worker", "parser"]


class ModelCard(Struct, frozen=True, omit_defaults=True):
    """A served model as its preprocessor and worker describe it; `/v1/models` shows it."""

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
    """Levels of reasoning effort that the template knows, least first."""
    switchable: bool = False
    """Reasoning can be turned off."""
    tools: bool = False
    features: list[str] = []
    """Of the engine: logprobs, guided, prefix_cache, kv_events, priority, salt, seed, …"""
    engine: str = ""
    block_tokens: int = 0
    """Tokens in a KV block of the engine; 0: prompts share nothing, or nobody knows."""


class Load(Struct, frozen=True, omit_defaults=True):
    """How busy a process is. For workers `slots` is how many turns decode at once, `queue_limit` how many may wait."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    queue_limit: int = 0
    kv_used: float | None = None
    """Share of the KV cache in use, 0 to 1."""


class Beat(Struct, frozen=True, omit_defaults=True):
    """Every process, each second and on change. Three missing in a row: it is dead."""

    stage: Stage
    id: str
    """Unique per start: a process that comes back has a new id and knows nothing."""
    models: list[ModelCard] = []
    draining: bool = False
    """Finishes what it has; takes nothing new."""
    leaving: bool = False
    """The last beat: gone."""
    load: Load = Load()
    window: int = 0
    """Bytes of frames that a sender may have under way to this process before it was granted more."""
    sent: dict[str, int] = {}
    """Last `seq` sent to each receiver: shows a receiver that the end of a stream was lost. One that is not named has
    nothing under way: it is new, or was taken for dead and its streams are elsewhere."""
    owed: dict[str, int] = {}
    """Last `seq` acknowledged by each receiver that has not acknowledged everything: shows it that a `Credit` was
    lost."""
    replays: dict[str, int] = {}
    """`number` of the last `Replay` heeded, by receiver: shows a receiver that its request was lost."""
    version: str = ""
    host: str = ""
    pid: int = 0


class Credit(Struct, frozen=True, omit_defaults=True):
    """receiver → sender: frames up to `seq` are handled or given up; `window` bytes may be under way."""

    receiver: str
    seq: int
    window: int
    asked: int = 0
    """`number` of the last `Replay` that was asked before. What was given up is in it: a sender that has not heeded it
    must not take the frames for delivered."""


class Standing(Struct, frozen=True, omit_defaults=True):
    """Where a receiver stands in one stream. Token streams count output tokens in `offset`; event streams stand in
    `block`, after `offset` characters of it."""

    turn: str
    attempt: int
    offset: int = 0
    block: int = 0


class Replay(Struct, frozen=True, omit_defaults=True):
    """receiver → sender: send these streams again from where I stand. `all`: and every other stream from 0."""

    receiver: str
    streams: list[Standing] = []
    all: bool = False
    number: int = 0
    """1, 2, 3 … per receiver and sender; the sender's beats tell the last one heeded."""


class ResponseNotice(Struct, frozen=True, omit_defaults=True):
    """Fan-out among frontends: a stored response was deleted (`forget`), or is not wanted any more (`cancel`)."""

    action: Literal["forget", "cancel"]
    id: str


class Cancel(Struct, frozen=True, omit_defaults=True):
    """Fan-out: nobody wants this turn any more (attempts up to `attempt`)."""

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
    """`unreadable`: a shard could not read whose turn it is; the worker knows, and tells the frontend."""
