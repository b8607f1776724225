"""Tests memos: equal tools are read once, and the result equals that of reading them again."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, Message, Text
from schemas.errors import Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.chat.request import parse as parse_chat
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.messages.request import parse as parse_messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.shared.decode import MIN_SHARED_CHARS, share_texts
from services.runtime import memo
from services.runtime.memo import MIN_SIZE, Memo

LONG = "Reads one file, from its first line to its last. " * 8


def messages(tools: Any, **rest: Any) -> bytes:
    said = [{"role": "user", "content": "Hi."}]
    return json.dumps(
        {"model": "m", "max_tokens": 9, "messages": said, "tools": tools, **rest}
    ).encode()


def tool(name: str, **rest: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"name": name, "description": LONG, "input_schema": schema, **rest}


def function(name: str, **rest: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": LONG,
        "parameters": {"type": "object"},
        **rest,
    }


def chat(tools: Any, **rest: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": tools, **rest}
    ).encode()


def responses(tools: Any, **rest: Any) -> bytes:
    return json.dumps({"model": "m", "input": "Hi.", "tools": tools, **rest}).encode()


def wrapped(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": LONG, "parameters": {"type": "object"}},
    }


def test_equal_tools_are_the_same_objects() -> None:
    for dialect, ask, offer in (
        (Messages(), messages, tool),
        (Chat(), chat, wrapped),
        (Responses(), responses, function),
    ):
        first, again = (
            dialect.parse(ask([offer("read")], temperature=heat), {}) for heat in (0.1, 0.9)
        )
        (one,), (other,) = first.conversations[0].tools, again.conversations[0].tools
        assert one is other
        assert one.description == LONG
        different = dialect.parse(ask([offer("write")]), {})
        assert [spec.name for spec in different.conversations[0].tools] == ["write"]


def test_remembered_tools_equal_fresh_ones() -> None:
    dialect = Messages()
    body = messages(
        [
            tool("read"),
            tool("find", defer_loading=True),
            {"type": "web_search_20250305", "name": "search"},
        ]
    )
    fresh = parse_messages(body, {})
    assert [dialect.parse(body, {}) for _ in range(3)] == [fresh] * 3
    assert fresh.notes == ["web_search_20250305"]


def test_changes_of_tools_stay_in_their_conversation() -> None:
    """`tool_addition` and `tool_removal` change the tools of one request, not those in the memo."""
    dialect = Messages()
    definition = {"type": "tool_definition", "definition": tool("late")}
    removed = {"type": "tool_reference", "name": "read"}
    said = [
        {"role": "user", "content": "Hi."},
        {"role": "system", "content": [{"type": "tool_addition", "tool": definition}]},
        {"role": "system", "content": [{"type": "tool_removal", "tool": removed}]},
        {"role": "user", "content": "Go on."},
    ]
    changed = dialect.parse(messages([tool("read")], messages=said), {})
    assert [spec.name for spec in changed.conversation.tools] == ["read", "late"]
    assert [
        spec.name for spec in dialect.parse(messages([tool("read")]), {}).conversation.tools
    ] == ["read"]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (
            Messages(),
            messages([tool("read"), {"name": "x", "input_schema": 3, "description": LONG}]),
        ),
        (Messages(), messages({"name": LONG * 2})),
        (Messages(), messages([tool("read"), tool("read")])),
        (
            Chat(),
            chat(
                [
                    wrapped("read"),
                    {"type": "function", "function": {"name": 3, "description": LONG}},
                ]
            ),
        ),
        (Chat(), chat([wrapped("read"), {"type": "function", "description": LONG}])),
        (
            Responses(),
            responses([function("read"), {"type": "function", "name": 3, "description": LONG}]),
        ),
        (Responses(), responses([function("read"), function("read")])),
    ],
)
def test_invalid_tools_are_refused_equally_each_time(dialect: Any, body: bytes) -> None:
    result = []
    for _ in range(3):
        with pytest.raises(Invalid) as refused:
            dialect.parse(body, {})
        result.append((str(refused.value), refused.value.info.param))
    assert result[0] == result[1] == result[2]
    assert "tools" in result[0][0] or "Tool names" in result[0][0]


def test_place_of_an_invalid_tool_is_that_in_the_body() -> None:
    with pytest.raises(Invalid, match=r"tools\.1\.input_schema"):
        parse_messages(messages([tool("read"), {"name": "x", "input_schema": 3}]), {})
    with pytest.raises(Invalid, match=r"tools\[1\]\.function\.name"):
        parse_chat(
            chat([wrapped("read"), {"type": "function", "function": {"name": 3}}]),
            {},
            ChatSettings(),
        )


def test_lone_surrogate_in_a_tool_is_mended() -> None:
    body = messages([tool("read")]).replace(b"Reads one", b"Reads \\ud83d one")
    dialect = Messages()
    for _ in range(2):
        (spec,) = dialect.parse(body, {}).conversation.tools
        assert spec.description.startswith("Reads \ufffd one file")


def test_least_recently_used_value_is_dropped_first() -> None:
    cache: Memo[bytes] = Memo(max_size=4 * MIN_SIZE)
    made: list[bytes] = []

    def make(data: bytes) -> bytes:
        made.append(data[:1])
        return data

    parts = {letter: letter * MIN_SIZE for letter in (b"a", b"b", b"c", b"d", b"e")}
    for letter in (b"a", b"b", b"c", b"d", b"a", b"e", b"a", b"b"):
        assert cache.get(parts[letter], make) == parts[letter]
    assert made == [b"a", b"b", b"c", b"d", b"e", b"b"]
    assert cache.size == 4 * MIN_SIZE


def test_too_large_and_too_small_values_are_not_kept() -> None:
    cache: Memo[bytes] = Memo(max_size=4 * MIN_SIZE)
    for data in (b"x" * (MIN_SIZE - 1), b"x" * (MIN_SIZE + 1)):
        assert cache.get(data, bytes) == data
    assert cache.size == 0


def test_failed_value_is_made_again() -> None:
    cache: Memo[int] = Memo()

    def fail(_: bytes) -> int:
        raise Invalid("no")

    with pytest.raises(Invalid):
        cache.get(b"1" * MIN_SIZE, fail)
    assert cache.get(b"1" * MIN_SIZE, len) == MIN_SIZE


def test_tools_in_the_input_do_not_reach_the_next_request() -> None:
    dialect = Responses()
    added = {"type": "additional_tools", "tools": [function("late")]}
    items = [added, {"type": "message", "role": "user", "content": "Hi."}]
    for names in (["read"], ["read", "late"], ["read"]):
        body = responses([function("read")], input=items if "late" in names else "Hi.")
        assert [spec.name for spec in dialect.parse(body, {}).conversation.tools] == names


def test_newest_of_parts_with_one_hash_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "xxh3_64_intdigest", lambda _: 1)
    cache: Memo[bytes] = Memo()
    for part in (b"a" * MIN_SIZE, b"b" * MIN_SIZE, b"a" * MIN_SIZE):
        assert cache.get(part, bytes.upper) == part.upper()
    assert cache.size == MIN_SIZE


INSTRUCTIONS = "Be brief, be exact, and read a file before you change it. " * 200
OTHER = INSTRUCTIONS[:3000] + "X" + INSTRUCTIONS[3001:]


def shared(cache: Memo[Any], *system: str, said: str = "Hi.") -> Conversation:
    conversation = Conversation(
        "m", [Message("user", [Text(said)])], system=[Text("".join(list(t))) for t in system]
    )
    share_texts(conversation, cache)
    return conversation


def test_requests_with_equal_instructions_share_one_text() -> None:
    api = Messages()
    blocks = [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": INSTRUCTIONS}]
    said = [[{"role": "user", "content": text}] for text in ("Hi.", INSTRUCTIONS + "?")]
    first, second = (
        api.parse(messages([], system=blocks, messages=one), {}).conversation for one in said
    )
    assert first.system[1] is second.system[1]
    assert [first, second] == [
        parse_messages(messages([], system=blocks, messages=one), {}).conversation for one in said
    ]


def test_instructions_in_messages_are_shared() -> None:
    api = Chat(ChatSettings())

    def ask(said: str) -> Conversation:
        messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": said}]
        return api.parse(chat([], messages=messages), {}).conversations[0]

    first, second = ask("Hi."), ask("Bye.")
    assert first.messages[0].parts[0] is second.messages[0].parts[0]
    assert second.messages[1].parts == [Text("Bye.")]


def test_texts_with_equal_ends_stay_different() -> None:
    cache: Memo[Any] = Memo()
    for system in (INSTRUCTIONS, OTHER, INSTRUCTIONS, OTHER):
        assert shared(cache, system).system == [Text(system)]
    assert cache.size == len(INSTRUCTIONS) + len(OTHER)


def test_short_and_too_large_texts_are_not_shared() -> None:
    cache: Memo[Any] = Memo(4 * MIN_SHARED_CHARS)
    shared(cache, "x" * (MIN_SHARED_CHARS - 1), "y" * (MIN_SHARED_CHARS + 1))
    assert cache.size == 0
    shared(cache, "z" * MIN_SHARED_CHARS)
    assert cache.size == MIN_SHARED_CHARS


def test_least_recently_used_text_is_dropped_first() -> None:
    cache: Memo[Any] = Memo(4 * MIN_SHARED_CHARS)
    kept = shared(cache, "0" * MIN_SHARED_CHARS).system[0]
    for name in "12345":
        shared(cache, name * MIN_SHARED_CHARS)
        assert shared(cache, "0" * MIN_SHARED_CHARS).system[0] is kept
        assert cache.size <= 4 * MIN_SHARED_CHARS
    assert shared(cache, "5" * MIN_SHARED_CHARS, said="1" * MIN_SHARED_CHARS).messages[0].parts == [
        Text("1" * MIN_SHARED_CHARS)
    ]
