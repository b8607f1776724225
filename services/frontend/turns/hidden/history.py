"""Puts hidden turns back into the histories of clients: calls of hidden tools, their results, and
the turns in which the model made them. Pure.

The turns of an answer up to a call that the client sees, or up to the end of the answer, come back
as one message:

    the model             turn 1: text, search      results      turn 2: text, call of the client
    the client's history                                         text of both, call
    the next prompt       turn 1: text, search      results      turn 2: text, call of the client
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, takewhile
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Part, Reasoning, Result, Text
from services.frontend.content.added_results import add_results
from services.ledger.turns.chain import parts_of
from services.ledger.turns.evidence import call_order
from services.ledger.turns.keys import squeeze

_WORD = re.compile(r"\S+")


class HiddenCall(Struct, omit_defaults=True):
    """A hidden call of a turn that the client sees, with its place in what the client sees of the
    turn, which holds however the client joins texts."""

    call: Call
    calls: int = 0
    """The number of calls before it."""
    characters: int = 0
    """The number of characters of text before it, without white space."""
    thoughts: int = 0
    """The number of parts of reasoning before it that follow these calls and characters."""


class HiddenTurns(Struct, omit_defaults=True):
    """The hidden parts of the turns that a client sends back as one message."""

    turns: list[str] = []
    """The ids of the turns before the last one."""
    messages: list[Message] = []
    """The output of the model in these turns, each with its results."""
    beside: list[HiddenCall] = []
    """Hidden calls of the last turn."""
    results: list[Result] = []
    """The results of these calls."""


class _Digests:
    """Digests of a conversation up to a turn: of the texts of users, of those of the model, and of
    its calls. Each has its own, because a client may join texts.

    Calls of hosted tools do not count: the client may not have them.
    """

    def __init__(self, conversation: Conversation) -> None:
        session = conversation.client.session or ""
        self._hosted = {tool.name for tool in conversation.tools if tool.hosted is not None}
        self._users = hashlib.blake2b(_bytes(session) + b"\0")
        self._model = hashlib.blake2b()
        self._calls = hashlib.blake2b()

    def add_users(self, messages: Sequence[Message]) -> None:
        """Adds messages of users."""
        for text in _texts(messages):
            self._users.update(_bytes(text) + b"\0")

    def add_turn(self, text: str, calls: Sequence[Call]) -> None:
        """Adds a turn of the model. `text`: without white space."""
        self._model.update(_bytes(text))
        for call in calls:
            if call.name not in self._hosted:
                self._calls.update(_bytes(call_order(call.call_id)[0]))

    def key(self) -> str:
        """Returns the key of the turn that was added last."""
        digests = self._users.digest() + self._model.digest() + self._calls.digest()
        return hashlib.blake2b(digests, digest_size=16).hexdigest()


def turn_keys(conversation: Conversation) -> dict[int, str]:
    """Returns the keys of the model's turns, by the index of the first message of each.

    A key is the tag of the first call's id, else a digest of the session's id and of all texts and
    calls up to the end of the turn. A turn without text and call has none, nor has a part of a turn
    that came before.
    """
    digests = _Digests(conversation)
    indices: dict[str, int] = {}
    for index, group in _groups(conversation.messages):
        role = group[0].role
        if role == "assistant":
            text = squeeze("".join(_texts(group)))
            calls = [part for part in parts_of(group) if isinstance(part, Call)]
            digests.add_turn(text, calls)
            key = ""
            if calls:
                key = call_order(calls[0].call_id)[0]
            elif text:
                key = digests.key()
            if key and key not in indices:  # else a part of a turn that came before
                indices[key] = index
        elif role != "tool":
            digests.add_users(group)
    return {index: key for key, index in indices.items()}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def put_back(messages: Sequence[Message], hidden: Mapping[int, HiddenTurns]) -> list[Message]:
    """Returns the messages with what is hidden. `hidden`: by the index of the first message of a
    turn. A turn that the client changed stays as it is."""
    out: list[Message] = []
    results: list[Result] = []
    for index, group in _groups(messages):
        found = hidden.get(index)
        restored = None if found is None else _restored(group, found)
        if found is None or restored is None:
            out += group
        else:
            out += restored
            results += found.results
    return add_results(out, results) if results else out


def _restored(turn: Sequence[Message], hidden: HiddenTurns) -> list[Message] | None:
    """Returns the messages in place of those of a turn; None if the client changed the part of it
    that repeats the hidden turns."""
    kept = _without_hidden(parts_of(turn), hidden)
    if kept is None:
        return None
    for beside in reversed(hidden.beside):
        kept = _with_call(kept, beside)
    if not kept:
        return hidden.messages
    ids = chain.from_iterable(message.ids for message in turn)
    kept_ids = [id for id in ids if not _is_of(id, hidden.turns)]
    return [*hidden.messages, replace(turn[0], parts=kept, ids=kept_ids)]


def _without_hidden(parts: Sequence[Part], hidden: HiddenTurns) -> list[Part] | None:
    """Returns the parts of a turn without those of the hidden turns before it; None if the client
    changed these. Clients may join texts, and may omit reasoning, its text or its seal."""
    thoughts = [part for part in parts_of(hidden.messages) if isinstance(part, Reasoning)]
    seals = {thought.seal for thought in thoughts if thought.seal}
    others = [part for part in parts if not _is_thought_of(part, seals, hidden.turns)]
    kept = _cut(others, Text, _texts(hidden.messages))
    if kept is None or not any(map(_is_bare_thought, others)):
        return kept
    return _cut(kept, Reasoning, (thought.text or "" for thought in thoughts))


def _is_thought_of(part: Part, seals: Collection[str], turns: Sequence[str]) -> bool:
    """Returns whether a part is reasoning with one of these seals, or of one of these turns."""
    if not isinstance(part, Reasoning):
        return False
    return part.seal in seals or _is_of(part.id or "", turns)


def _is_bare_thought(part: Part) -> bool:
    """Returns whether a part is reasoning of which only the text came back."""
    return isinstance(part, Reasoning) and bool(part.text) and not (part.seal or part.id)


def _cut(
    parts: Sequence[Part], kind: type[Text] | type[Reasoning], texts: Iterable[str]
) -> list[Part] | None:
    """Returns the parts without the texts with which those of this kind begin; None if they begin
    with others. White space does not count."""
    start = squeeze("".join(texts))
    written = "".join(part.text or "" for part in parts if isinstance(part, kind))
    if not squeeze(written).startswith(start):
        return None
    characters = len(start)
    kept: list[Part] = []
    for part in parts:
        if not characters or not isinstance(part, kind):
            kept.append(part)
            continue
        text = part.text or ""
        rest = text[_index_after(text, characters) :]
        characters -= min(characters, len(squeeze(text)))
        if rest.strip():
            kept.append(replace(part, text=rest))
    return kept


def _index_after(text: str, characters: int) -> int:
    """Returns the index after this number of characters that are not white space."""
    for word in _WORD.finditer(text):
        characters -= len(word[0])
        if characters <= 0:
            return word.end() + characters
    return len(text)


def _with_call(parts: Sequence[Part], beside: HiddenCall) -> list[Part]:
    """Returns the parts of a turn with a hidden call in its place; at the end, if they lack what
    was before it."""
    calls = beside.calls
    characters = beside.characters
    out: list[Part] = []
    rest = [*parts]
    while rest and (calls > 0 or characters > 0):
        part = rest.pop(0)
        out.append(part)
        if isinstance(part, Call):
            calls -= 1
        elif isinstance(part, Text):
            end = _index_after(part.text, characters)
            characters -= len(squeeze(part.text))
            if characters < 0 and calls <= 0:  # joined with text that came after the call
                out[-1] = replace(part, text=part.text[:end])
                rest.insert(0, replace(part, text=part.text[end:]))
    thoughts = takewhile(_is_reasoning, islice(rest, beside.thoughts))
    place = len(list(thoughts))
    return [*out, *rest[:place], beside.call, *rest[place:]]


def _is_reasoning(part: Part) -> bool:
    return isinstance(part, Reasoning)


def _is_of(item_id: str, turns: Sequence[str]) -> bool:
    """Returns whether a Responses item with this id is of one of the turns."""
    return any(turn in item_id for turn in turns)


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    for part in parts_of(messages):
        if isinstance(part, Text):
            yield part.text


def _groups(messages: Sequence[Message]) -> Iterator[tuple[int, list[Message]]]:
    """Yields consecutive messages of one role, with the index of the first."""
    index = 0
    for _, run in groupby(messages, key=attrgetter("role")):
        group = list(run)
        yield index, group
        index += len(group)
