"""Parses scripts, which are written model output, and directives, and makes a request's output of
them. Pure.

A script is a list of parts: text (special tokens included), tokens of plain prose, and actions that
take effect at their place. Files hold either raw text or a JSON list of parts; a JSON object holds
several scripts by name:

    ["<think>\\nShort.\\n</think>\\n\\n", {"mark": "open"}, {"pause_ms": 200}, {"fill": 64},
    {"fill": "n"}]

A request in test mode writes the same with directives: `[[fill 64]]`, `[[pause 200]]`, `[[delay
5]]`, `[[burst 4]]`, `[[mark open]]`, `[[fail why]]`, `[[die why]]`, `[[silence]]`.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from itertools import chain, cycle, islice
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason

ActionKind: TypeAlias = Literal["pause", "delay", "burst", "mark", "fail", "die", "silence"]
Encode: TypeAlias = Callable[[str], list[int]]

PROSE = (
    "Every engine waits for something. This one waits for nobody: it has its text before it "
    "starts, and all that is left to it is to say the words one after the other, at an even pace, "
    "until there are enough of them. Nothing in these sentences means anything to the reader, and "
    "nothing in them looks like the opening of a tool call. They are here to be counted, and when "
    "they come to their end they begin again. "
)
"""The text from which `fill` takes tokens."""
_TEXT_ACTIONS: frozenset[ActionKind] = frozenset(("mark", "fail", "die", "silence"))
_JSON_KINDS = {"pause_ms": "pause", "delay_ms": "delay"} | {
    kind: kind for kind in ("burst", "fill", *_TEXT_ACTIONS)
}


class Fill(Struct, frozen=True):
    """`tokens` tokens of prose; None: as many as the request's play directive names."""

    tokens: int | None = None


class Action(Struct, frozen=True):
    """Takes effect before the next token. Times in milliseconds."""

    kind: ActionKind
    amount: float = 0.0
    text: str = ""


Part: TypeAlias = str | Fill | Action
Script: TypeAlias = list[Part]


class PlayDirective(Struct, frozen=True, rename={"delay_ms": "delay"}):
    """`[[play NAME n=512 delay=10 burst=1 id=x]]`: which script, and how."""

    name: str
    n: int = 16
    delay_ms: float | None = None
    burst: int = 1
    id: str = "-"


class Playback(Struct, frozen=True):
    """A script in tokens, whole or what one request gets of it."""

    ids: list[int]
    """Without the end token."""
    actions: list[tuple[int, Action]]
    """In order of place."""
    finish: FinishReason = FinishReason.STOP
    stop_id: int | None = None


_PLAY = re.compile(r"\[\[play ([\w-]+)((?: \w+=[\w.\-]+)*)\]\]")
_INLINE = re.compile(r"\[\[(fill|pause|delay|burst|mark|fail|die|silence)(?: ([^\]]*))?\]\]")


def find_directive(text: str) -> PlayDirective | None:
    """The last play directive of `text`. Raises Invalid if it is malformed."""
    directives = _PLAY.findall(text)
    if not directives:
        return None
    name, options = directives[-1]
    try:
        options = dict(option.split("=", 1) for option in options.split())
        return msgspec.convert({**options, "name": name}, PlayDirective, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"play directive: {error}", param="prompt") from None


def parse_file(name: str, text: str) -> dict[str, Script]:
    """The scripts in one file, by name: a `.json` file's own names or the file's; anything else is
    raw output.

    Raises ValueError, naming the file, if it is malformed.
    """
    stem, _, suffix = name.rpartition(".")
    if suffix != "json":
        return {stem or name: [text]}
    try:
        document = json.loads(text)
        if isinstance(document, list):
            return {stem: _script(document)}
        scripts = {key: value for key, value in document.items() if not key.startswith("_")}
        return {key: _script(value) for key, value in scripts.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def parse_inline(text: str) -> Script:
    """Text with directives in it, as a script. Raises Invalid for a directive with a value that
    must be a number and is not."""
    parts: Script = []
    end = 0
    for match in _INLINE.finditer(text):
        kind = match[1]
        value = (match[2] or "").strip()
        try:
            parts += [text[end : match.start()], _action(kind, value)]
        except ValueError:
            raise Invalid(f"[[{kind} {value}]] needs a number", param="prompt") from None
        end = match.end()
    return [part for part in (*parts, text[end:]) if part != ""]


def compile_script(script: Script, encode: Encode, prose: Sequence[int], n: int = 16) -> Playback:
    """A script in tokens; `prose` is what `fill` repeats, `n` the length of `{"fill": "n"}`."""
    ids: list[int] = []
    actions: list[tuple[int, Action]] = []
    for part in script:
        if isinstance(part, str):
            ids += encode(part)
        elif isinstance(part, Action):
            actions.append((len(ids), part))
        else:
            count = n if part.tokens is None else part.tokens
            ids += islice(cycle(prose), max(0, count))
    return Playback(ids, actions)


def perform(
    script: Playback,
    sampling: Sampling,
    stop_ids: Sequence[int],
    eos_ids: Sequence[int],
    prose: Sequence[int],
    *,
    resumed: int = 0,
) -> Playback:
    """The part of a script that a request gets: from token `resumed` up to `max_tokens` or the
    first stop id.

    The script's own end is an end token; where the request ignores those, or has not had
    `min_tokens` yet, prose follows. `max_tokens` and `min_tokens` count from `resumed`.
    """
    stops = frozenset(stop_ids)
    limit = sampling.max_tokens or 0
    least = sampling.min_tokens or 0
    end = [token for token in eos_ids if token in stops][:1]
    filler = [token for token in prose if token not in stops]
    more = cycle(filler or prose[:1])

    ids: list[int] = []
    for token in chain(script.ids[resumed:], end, more):
        if len(ids) == limit:
            break
        if token not in stops:
            ids.append(token)
        elif len(ids) < least:
            ids.append(next(more))
        else:
            actions = _remaining_actions(script, resumed, len(ids))
            return Playback(ids, actions, FinishReason.STOP, token)
    actions = _remaining_actions(script, resumed, len(ids))
    return Playback(ids, actions, FinishReason.LENGTH)


def place_after(output: Sequence[int], script: Sequence[int], stops: Collection[int]) -> int:
    """Where the script goes on after an output. Tokens in it that the script does not have there
    end a thought at its budget: the script goes on after its own end of the thought, as a model
    does."""
    at = done = 0
    while done < len(output) and at < len(script):
        # Prose replaces a stop id until there are `min_tokens`.
        if output[done] == script[at] or script[at] in stops:
            at += 1
            done += 1
            continue
        rest = output[done:]
        places = [place for place in range(at, len(script)) if script[place] == output[done]]
        if not places:
            done += 1
            continue
        place = max(places, key=lambda place: (_equal(rest, script[place:]), -place))
        length = _equal(rest, script[place:])
        at = place + length
        done += length
    return at + len(output) - done


def _equal(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of equal items at the beginning."""
    for at, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return at
    return min(len(first), len(second))


def _remaining_actions(script: Playback, resumed: int, length: int) -> list[tuple[int, Action]]:
    """The actions that are still to come. Of former ones only those that set the pace still
    hold."""
    kept = []
    for at, action in script.actions:
        place = at - resumed
        if place <= 0 < resumed:
            if action.kind in {"delay", "burst"}:
                kept.append((0, action))
        elif place <= length:
            kept.append((place, action))
    return kept


def _script(items: Any) -> Script:
    return [_part(item) for item in items]


def _part(item: Any) -> Part:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError(f"a part is a text or an object with one key, not {item!r}")
    ((key, value),) = item.items()
    if key not in _JSON_KINDS:
        raise ValueError(f"unknown part {key!r}")
    if item == {"fill": "n"}:
        return Fill()
    return _action(_JSON_KINDS[key], value)


def _action(kind: str, value: Any) -> Fill | Action:
    """Raises ValueError or TypeError for a value that must be a number and is not."""
    if kind == "fill":
        return Fill(int(value))
    if kind in _TEXT_ACTIONS:
        return Action(kind, text=str(value))
    return Action(cast(ActionKind, kind), float(value))
