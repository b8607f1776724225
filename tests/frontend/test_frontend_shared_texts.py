"""Long texts that several requests have in common: one object, and never another text."""

import json
from typing import Any

from schemas.conversation import Conversation, Text, Turn
from services.frontend.dialects.chat.dialect import Chat
from services.frontend.dialects.chat.shape import Settings
from services.frontend.dialects.messages.dialect import Messages
from services.frontend.dialects.messages.request import parse as parse_messages
from services.frontend.dialects.shared_texts import MIN_CHARS, SharedTexts

LONG = "Be brief, be exact, and read a file before you change it. " * 200
OTHER = LONG[:3000] + "X" + LONG[3001:]


def body(system: Any, said: str = "Hi.") -> bytes:
    return json.dumps(
        {"model": "m", "max_tokens": 9, "system": system, "messages": [{"role": "user", "content": said}]}
    ).encode()


def shared(texts: SharedTexts, *system: str, said: str = "Hi.") -> Conversation:
    conversation = Conversation("m", [Turn("user", [Text(said)])], system=[Text("".join(list(t))) for t in system])
    texts.share(conversation)
    return conversation


def test_requests_with_the_same_instructions_hold_one_text() -> None:
    api = Messages()
    blocks = [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": LONG}]
    first, second = (api.parse(body(blocks, said), {}).conversation for said in ("Hi.", LONG + "?"))
    assert first.system[1] is second.system[1]
    assert [second, first] == [parse_messages(body(blocks, said), {}).conversation for said in (LONG + "?", "Hi.")]


def test_instructions_that_are_messages_are_held_once_too() -> None:
    api = Chat(Settings())

    def ask(said: str) -> Conversation:
        messages = [{"role": "system", "content": LONG}, {"role": "user", "content": said}]
        return api.parse(json.dumps({"model": "m", "messages": messages}).encode(), {}).conversations[0]

    first, second = ask("Hi."), ask("Bye.")
    assert first.turns[0].parts[0] is second.turns[0].parts[0]
    assert second.turns[1].parts == [Text("Bye.")]


def test_texts_that_only_begin_and_end_alike_stay_what_they_are() -> None:
    texts = SharedTexts()
    for system in (LONG, OTHER, LONG, OTHER):
        assert shared(texts, system).system == [Text(system)]
    assert texts.size == len(LONG)


def test_short_texts_and_texts_too_large_are_left_alone() -> None:
    texts = SharedTexts(4 * MIN_CHARS)
    shared(texts, "x" * (MIN_CHARS - 1), "y" * (MIN_CHARS + 1))
    assert texts.size == 0
    shared(texts, "z" * MIN_CHARS)
    assert texts.size == MIN_CHARS


def test_what_was_used_least_lately_goes_first() -> None:
    texts = SharedTexts(4 * MIN_CHARS)
    kept = shared(texts, "0" * MIN_CHARS).system[0]
    for name in "12345":
        shared(texts, name * MIN_CHARS)
        assert shared(texts, "0" * MIN_CHARS).system[0] is kept
        assert texts.size <= 4 * MIN_CHARS
    assert shared(texts, "5" * MIN_CHARS, said="1" * MIN_CHARS).turns[0].parts == [Text("1" * MIN_CHARS)]
