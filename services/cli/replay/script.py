"""A replay file: turns with what the client asks, what the model writes, and what the client must see (docs/replay.md).

A line is one JSON value. A string is a piece of the model's output, a list several; an object says what it is by its
first key. A turn begins with `user`, `results`, `conversation` or `request`. Pure: text in, turns out.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from schemas.conversation import Conversation, Result, Sampling, Text, ToolSpec
from schemas.errors import ErrorInfo
from schemas.events import FinishReason, TurnEvent, Usage
from schemas.frames import ParseContext

VERSION = 1
Api: TypeAlias = Literal["messages", "responses", "chat"]
APIS: tuple[Api, ...] = get_args(Api)
Kind: TypeAlias = Literal["reasoning", "text", "call", "cut call"]
Story: TypeAlias = list[tuple[str, str]]
"""What a client was told, in order: a kind and a text for each block; a call's text is its name, a space and its
arguments as JSON of one spelling. `cut call`: one whose arguments are no JSON object, since it was cut off."""
End: TypeAlias = Literal["stop", "calls", "length", "error", "refused"]


class Say(Struct, frozen=True):
    """Pieces of the model's output, each one token, that come together."""

    pieces: list[str]


class Events(Struct, frozen=True):
    """Recorded events that came together, `at` seconds after the turn was asked for."""

    events: list[TurnEvent]
    at: float = 0.0


class Tokens(Struct, frozen=True):
    """Recorded token ids that came together. They say what the events say, in the model's own tokens."""

    ids: list[int]
    at: float = 0.0


class Gate(Struct, frozen=True):
    """Nothing further is said until the client has seen one more such block complete: `reasoning`, `text`, `call` or
    `call NAME`."""

    label: str

    def passes(self, kind: str, name: str | None) -> bool:
        """Whether a block of this kind and name is what it waits for."""
        wanted, _, called = self.label.partition(" ")
        return kind == wanted and (not called or called == name)


class Pause(Struct, frozen=True):
    """A wait, in milliseconds at speed 1."""

    ms: float


class Fail(Struct, frozen=True):
    """The engine fails here."""

    message: str


Step: TypeAlias = Say | Events | Tokens | Gate | Pause | Fail


class Turn(Struct):
    """One request and its answer."""

    line: int
    """Where it begins."""
    user: str | None = None
    """A new user message behind the conversation so far …"""
    results: list[Result] | None = None
    """… or the results of the calls before, in their order; `call_id` is filled in when it is played …"""
    conversation: Conversation | None = None
    """… or a whole conversation …"""
    request: dict[str, Any] | None = None
    """… or a body as a client of `api` sends it."""
    api: Api | None = None
    """The only API over which this can be played."""
    sampling: Sampling = Sampling()
    steps: list[Step] = []
    refuse: ErrorInfo | None = None
    """The pipeline does not take it."""
    context: ParseContext | None = None
    """What the parser was told, in a recording."""
    finish: FinishReason = FinishReason.STOP
    usage: Usage = Usage(prompt=100, cached=64)
    """`prompt` and `cached`; what was written is counted."""
    expect: Story | None = None
    end: End | None = None


class Replay(Struct):
    """A file."""

    name: str = ""
    about: str = ""
    family: str = "qwen3_coder"
    """In whose form the model's output is written."""
    in_reasoning: bool = False
    """The prompt has opened the thought."""
    system: str = ""
    tools: list[ToolSpec] = []
    turns: list[Turn] = []

    @property
    def apis(self) -> list[Api]:
        """Over which it can be played."""
        only = {turn.api for turn in self.turns if turn.api is not None}
        return [api for api in APIS if not only or only == {api}]


class BadReplay(ValueError):
    """A file that is not well formed; the text names the line."""


def read(name: str, text: str) -> Replay:
    """The replay in a file. Raises BadReplay."""
    replay = Replay(name=name)
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON may hold U+2028
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        try:
            _take(replay, number, json.loads(bare))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise BadReplay(f"{name}:{number}: {error}") from None
    if not replay.turns:
        raise BadReplay(f"{name}: no turn in it")
    return replay


def _take(replay: Replay, number: int, value: Any) -> None:
    if isinstance(value, dict) and "replay" in value:
        _header(replay, value)
        return
    if isinstance(value, dict) and any(key in value for key in ("user", "results", "conversation", "request")):
        replay.turns.append(_begin(number, value))
        return
    if not replay.turns:
        raise ValueError("a turn begins with user, results, conversation or request")
    turn = replay.turns[-1]
    if isinstance(value, str | list):
        pieces = [value] if isinstance(value, str) else msgspec.convert(value, list[str])
        turn.steps = [*turn.steps, Say(pieces)]
        return
    for key, given in _object(value).items():
        _set(turn, key, given, value)


def _header(replay: Replay, value: dict[str, Any]) -> None:
    if value["replay"] != VERSION:
        raise ValueError(f"version {value['replay']} is not known; this is version {VERSION}")
    for key, given in value.items():
        match key:
            case "replay":
                pass
            case "about" | "family" | "system":
                setattr(replay, key, msgspec.convert(given, str))
            case "in_reasoning":
                replay.in_reasoning = msgspec.convert(given, bool)
            case "tools":
                replay.tools = list(_tools(given))
            case _:
                raise ValueError(f"{key} is unknown in the head")


def _tools(given: Any) -> Iterator[ToolSpec]:
    for tool in msgspec.convert(given, list[str | dict[str, Any]]):
        if isinstance(tool, str):
            yield ToolSpec(tool, f"The tool {tool}.", {"type": "object", "properties": {}})
        else:
            yield msgspec.convert(tool, ToolSpec)


def _begin(number: int, value: dict[str, Any]) -> Turn:
    turn = Turn(number)
    for key, given in value.items():
        match key:
            case "user":
                turn.user = msgspec.convert(given, str)
            case "results":
                turn.results = [_result(one) for one in msgspec.convert(given, list[Any])]
            case "conversation":
                turn.conversation = msgspec.convert(given, Conversation)
            case "request":
                turn.request = _object(given)
            case "api":
                turn.api = msgspec.convert(given, Api)
            case "recorded":
                pass
            case "sampling":
                turn.sampling = msgspec.convert(given, Sampling)
            case _:
                raise ValueError(f"{key} is unknown where a turn begins")
    if sum(one is not None for one in (turn.user, turn.results, turn.conversation, turn.request)) != 1:
        raise ValueError("a turn has one of user, results, conversation and request")
    if (turn.request is None) != (turn.api is None):
        raise ValueError("request and api go together")
    return turn


def _result(given: Any) -> Result:
    if isinstance(given, str):
        return Result("", [Text(given)])
    held = _object(given)
    return Result("", [Text(str(held.get("text", "")))], is_error=held.get("is_error"))


def _set(turn: Turn, key: str, given: Any, line: dict[str, Any]) -> None:
    match key:
        case "events":
            events = msgspec.convert(given, list[TurnEvent])
            turn.steps = [*turn.steps, Events(events, float(line.get("at", 0.0)))]
        case "tokens":
            turn.steps = [*turn.steps, Tokens(msgspec.convert(given, list[int]), float(line.get("at", 0.0)))]
        case "at":
            if not line.keys() & {"events", "tokens"}:
                raise ValueError("at belongs to events and tokens")
        case "gate":
            turn.steps = [*turn.steps, _gate(msgspec.convert(given, str))]
        case "pause_ms":
            turn.steps = [*turn.steps, Pause(float(given))]
        case "fail":
            turn.steps = [*turn.steps, Fail(msgspec.convert(given, str))]
        case "refuse":
            turn.refuse = msgspec.convert(given, ErrorInfo)
        case "context":
            turn.context = msgspec.convert(given, ParseContext)
        case "finish":
            turn.finish = FinishReason(given)
        case "usage":
            turn.usage = msgspec.convert(given, Usage)
        case "expect":
            turn.expect = [(kind, text) for kind, text in msgspec.convert(given, list[tuple[str, str]])]
            _check_kinds(turn.expect)
        case "end":
            turn.end = msgspec.convert(given, End)
        case _:
            raise ValueError(f"{key} is unknown")


def _gate(label: str) -> Gate:
    if label.partition(" ")[0] not in ("reasoning", "text", "call"):
        raise ValueError(f"a gate waits for reasoning, text, call or call NAME, not for {label!r}")
    return Gate(label)


def _check_kinds(story: Story) -> None:
    for kind, _ in story:
        if kind not in get_args(Kind):
            raise ValueError(f"{kind!r} is none of {', '.join(get_args(Kind))}")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"want an object, not {value!r}")
    return value


def differences(wanted: Sequence[tuple[str, str]], seen: Sequence[tuple[str, str]]) -> list[str]:
    """What a story lacks or has too much of, block by block; empty where both say the same."""
    found = []
    for place in range(max(len(wanted), len(seen))):
        left = wanted[place] if place < len(wanted) else None
        right = seen[place] if place < len(seen) else None
        if left != right:
            found.append(f"block {place}: want {_told(left)}, got {_told(right)}")
    return found


def _told(block: tuple[str, str] | None) -> str:
    return "none" if block is None else f"{block[0]} {block[1]!r}"
