"""Reads replay files: turns with the client's request, the model's output and the expected answer
(docs/replay.md).

A line is one JSON value. A string or a list of strings is output of the model; an object is a
`Header`, `TurnStart`, `Step` or `TurnProperties`.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from schemas.conversation import Conversation, Sampling, ToolSpec
from schemas.errors import ErrorInfo
from schemas.events import FinishReason, LoggedEvent, Usage
from schemas.requests import ParseContext
from services.cli.common import UsageError
from turnwire_tools.clients.answer import APIS, Api, End, Story

VERSION = 1


class Output(Struct, frozen=True):
    """Output of the model that arrives together; each piece is one token."""

    pieces: list[str]


class RecordedEvents(Struct, frozen=True, forbid_unknown_fields=True):
    """Recorded events that arrived together, `at` seconds after the request."""

    events: list[LoggedEvent]
    at: float = 0.0


class RecordedTokens(Struct, frozen=True, forbid_unknown_fields=True):
    """Recorded token ids that arrived together: the same output as in the events, in the model's
    own tokens."""

    tokens: list[int]
    at: float = 0.0


class Gate(Struct, frozen=True, forbid_unknown_fields=True):
    """Waits until the client has received one more complete `reasoning`, `text`, `call` or `call
    NAME`."""

    gate: str

    def __post_init__(self) -> None:
        if self.gate.partition(" ")[0] not in ("reasoning", "text", "call"):
            raise ValueError(f"a gate is reasoning, text, call or call NAME, not {self.gate!r}")

    def matches(self, kind: str, name: str) -> bool:
        """Whether the gate waits for blocks of this kind and name."""
        return self.gate in (kind, f"{kind} {name}")


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    """A wait, in milliseconds at speed 1."""

    pause_ms: float


class Fail(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of the engine, with this message."""

    fail: str


Step: TypeAlias = Output | RecordedEvents | RecordedTokens | Gate | Pause | Fail
_STEPS: Mapping[str, type[Step]] = {
    kind.__struct_fields__[0]: kind for kind in get_args(Step) if kind is not Output
}
"""Steps by the field that names them in a line."""


class Header(Struct, forbid_unknown_fields=True):
    """The line at the beginning of a file."""

    replay: int
    about: str = ""
    family: str = "qwen3_coder"
    """The family with the format of the output."""
    in_reasoning: bool = False
    """The prompt ends inside a reasoning block."""
    system: str = ""
    tools: list[str | ToolSpec] = []

    def __post_init__(self) -> None:
        if self.replay != VERSION:
            raise ValueError(f"version {self.replay} is unknown; this is version {VERSION}")


class RecordedPrompt(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The prompt as its worker got it, `at` seconds after the request. No player needs it;
    `turnwire inspect` does."""

    at: float
    ids: bytes = b""
    """Packed (`token_ids.pack_ids`)."""
    worker: str = ""
    parser: str = ""
    attempt: int = 1
    reused: int = 0
    recall: str = ""


class ToolResult(Struct):
    """The result of a tool call."""

    text: str = ""
    is_error: bool | None = None


class TurnProperties(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a turn besides its request and its steps; any part of it is a line."""

    refuse: ErrorInfo | None = None
    """The error with which the pipeline refuses the request."""
    context: ParseContext | None = None
    """The recorded parse context."""
    prompt: RecordedPrompt | None = None
    """The recorded prompt."""
    finish: FinishReason = FinishReason.STOP
    usage: Usage = Usage(prompt=100, cached=64)
    """`prompt` and `cached`; output tokens are counted."""
    expect: Story | None = None
    end: End | None = None


class TurnStart(TurnProperties, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The request of a turn. Exactly one of the first four fields is set."""

    user: str | None = None
    """A user message after the conversation so far."""
    results: list[str | ToolResult] | None = None
    """The results of the previous turn's calls, in their order."""
    conversation: Conversation | None = None
    request: dict[str, Any] | None = None
    """A body of `api`."""
    api: Api | None = None
    """The only API over which the file can be played."""
    sampling: Sampling = Sampling()
    recorded: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        requests = (self.user, self.results, self.conversation, self.request)
        if sum(request is not None for request in requests) != 1:
            raise ValueError("a turn has one of user, results, conversation and request")
        if (self.request is None) != (self.api is None):
            raise ValueError("request and api go together")


class ReplayTurn(TurnStart, kw_only=True):
    """One request and its answer."""

    line: int
    """The line number of its start."""
    steps: list[Step] = []


class ReplayFile(Struct):
    """A file."""

    name: str
    header: Header
    turns: list[ReplayTurn] = []

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools of every turn."""
        return [_tool_spec(tool) for tool in self.header.tools]

    @property
    def apis(self) -> list[Api]:
        """The APIs over which the file can be played."""
        only = {turn.api for turn in self.turns if turn.api is not None}
        return [api for api in APIS if not only or only == {api}]


def _tool_spec(tool: str | ToolSpec) -> ToolSpec:
    """A tool of the header; a name alone stands for a tool without arguments."""
    if isinstance(tool, ToolSpec):
        return tool
    return ToolSpec(tool, f"The tool {tool}.", {"type": "object", "properties": {}})


class BadReplay(UsageError):
    """A file with an error; the text names the line."""


def read(name: str, text: str) -> ReplayFile:
    """The replay in a file. Raises BadReplay."""
    replay = ReplayFile(name, Header(VERSION))
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON may contain U+2028
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            _add_line(replay, number, json.loads(stripped))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise BadReplay(f"{name}:{number}: {error}") from None
    if not replay.turns:
        raise BadReplay(f"{name}: no turn in it")
    return replay


def _add_line(replay: ReplayFile, number: int, value: Any) -> None:
    keys = set(value) if isinstance(value, dict) else set()
    if "replay" in keys:
        replay.header = msgspec.convert(value, Header)
    elif keys & {"user", "results", "conversation", "request"}:
        start = msgspec.convert(value, TurnStart)
        replay.turns.append(ReplayTurn(line=number, **msgspec.structs.asdict(start)))
    elif replay.turns:
        _add_to_turn(replay.turns[-1], keys, value)
    else:
        raise ValueError("a turn begins with user, results, conversation or request")


def _add_to_turn(turn: ReplayTurn, keys: set[str], value: Any) -> None:
    """Adds a step or properties. `keys`: of the line, if it is an object."""
    if isinstance(value, str):
        turn.steps.append(Output([value]))
        return
    if isinstance(value, list):
        turn.steps.append(Output(msgspec.convert(value, list[str])))
        return
    for key, kind in _STEPS.items():
        if key in keys:
            turn.steps.append(msgspec.convert(value, kind))
            return

    properties = msgspec.convert(value, TurnProperties)
    for name in keys:
        setattr(turn, name, getattr(properties, name))
