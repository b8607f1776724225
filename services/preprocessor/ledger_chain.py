"""A conversation as a chain of keys: one for each turn of the model, under which its entry is found.

In the key: model, template and tenant (as `scope`), the leading instructions, and every turn up to this one, each in a
form that all replays of it share. Not in it: tools, template variables, thinking. They are seen in the prompt's text,
which must begin with the very text that the turn was decoded behind before anything of an entry is used.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec import Struct

from schemas.conversation import Call, Conversation, Media, Part, Result, Text, ToolReference, Turn
from services.parser.turn_keys import add, chain, key_arguments, turn_key


class Link(Struct, frozen=True):
    """A turn of the model: turns `first` up to `end` of the conversation, without it."""

    first: int
    end: int
    key: bytes
    state: bytes
    """The chain hash before it."""


class Chain(Struct, frozen=True):
    """All turns of the model, oldest first."""

    links: list[Link]
    state: bytes
    """The chain hash behind everything: what the next turn's key starts from."""
    calls: dict[str, int] = {}
    """The calls' numbers by id, in order of appearance."""
    count: int = 0


def scope_of(model: str, template: bytes, tenant: str | None) -> bytes:
    """What the keys of a session are bound to. `template`: a digest of all that turns messages into ids."""
    hasher = chain(b"")
    add(hasher, "scope", model, template.hex(), "-" if tenant is None else "=" + tenant)
    return hasher.digest()


def chain_of(
    conversation: Conversation,
    scope: bytes,
    known: Chain | None = None,
    opened: Callable[[bytes, list[str]], "hashlib.blake2b"] | None = None,
) -> Chain:
    """The chain of a conversation, which is read as `messages.adapt` reads it: assistant turns that touch are one.

    `known`: the chain of one that is the same up to the end of that chain's last link, where a turn of the model ends.
    `opened`: `open_chain`, maybe with a memory.
    """
    calls = _Ordinals(known)
    if known is not None and known.links:
        links, start = list(known.links), known.links[-1].end
        hasher = chain(links[-1].key)
    else:
        texts, start = _leading(conversation)
        links, hasher = list[Link](), (opened or open_chain)(scope, texts)
    at = start
    for assistant, group in groupby(conversation.turns[start:], key=lambda turn: turn.role == "assistant"):
        turns = list(group)
        end = at + len(turns)
        if assistant:
            state = hasher.digest()
            parts = [part for turn in turns for part in turn.parts]
            calls.take(parts)
            key = turn_key(state, *spoken(parts))
            links.append(Link(at, end, key, state))
            hasher = chain(key)
        else:
            _add_group(hasher, turns, calls)
        at = end
    return Chain(links, hasher.digest(), calls.numbers, calls.count)


def spoken(parts: Sequence[Part]) -> tuple[str, list[tuple[str, str]]]:
    """All text of an assistant's turn, and its calls as names and the arguments that count."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    calls = [
        (told_name(part), key_arguments(part.arguments, freeform=part.kind == "custom"))
        for part in parts
        if isinstance(part, Call)
    ]
    return "".join(texts), calls


def told_name(call: Call) -> str:
    """The name under which the model knows the tool."""
    return f"{call.namespace}__{call.name}" if call.namespace else call.name


class _Ordinals:
    """Calls by number: ids are the server's own, and some clients change their spelling."""

    def __init__(self, known: Chain | None = None) -> None:
        self.numbers = dict(known.calls) if known is not None else {}
        self.count = known.count if known is not None else 0

    def take(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Call):
                self.numbers[part.call_id] = self.count
                self.count += 1

    def of(self, call_id: str) -> int:
        """-1 for a result of no call."""
        return self.numbers.get(call_id, -1)


def open_chain(scope: bytes, instructions: list[str]) -> "hashlib.blake2b":
    """The hash behind the instructions that stand before all else."""
    hasher = chain(scope)
    add(hasher, "instructions", "\n".join(instructions))
    return hasher


def _leading(conversation: Conversation) -> tuple[list[str], int]:
    """The instructions before all else, wherever they came from, and the index of the first other turn."""
    texts = [text.text for text in conversation.system]
    start = 0
    for turn in conversation.turns:
        if turn.role not in ("system", "developer"):
            break
        texts += [part.text for part in turn.parts if isinstance(part, Text)]
        start += 1
    return texts, start


def _add_group(hasher: "hashlib.blake2b", turns: Sequence[Turn], calls: _Ordinals) -> None:
    """What stands between two turns of the model. A string and its single text block are the same; so are results that
    follow each other, in one turn or several, in any order."""
    results: list[tuple[int, Result]] = []

    def flush() -> None:
        for number, result in sorted(results, key=lambda numbered: numbered[0]):
            texts = [_text(part) for part in result.parts]
            add(hasher, "result", str(number), "!" if result.is_error else "", "\n".join(texts))
        results.clear()

    for turn in turns:
        results += [(calls.of(part.call_id), part) for part in turn.parts if isinstance(part, Result)]
        said = [_text(part) for part in turn.parts if isinstance(part, Text | Media)]
        if said:
            flush()
            instructs = turn.role in ("system", "developer")
            add(hasher, "instruction" if instructs else "user", "\n".join(said))
    flush()


def _text(part: Text | Media | ToolReference) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, ToolReference):
        return f"\x00tool {part.name}"
    return "\x00".join(("", part.kind, part.media_type, str(part.size_bytes), part.url or "", part.title or ""))
