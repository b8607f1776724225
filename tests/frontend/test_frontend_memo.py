"""Tests memos: equal tools are read once, and the result equals that of reading them again."""

from services.frontend.apis.messages.request import Messages
from services.runtime.caches.memo import MIN_SIZE, Memo
from tests.kit.bodies import CONVERSING, MESSAGES, Json, Reader, block, message, parsed, tool, user

LONG = "Reads one file, from its first line to its last. " * 8


def names(reader: Reader, body: Json) -> list[str]:
    return [spec.name for spec in parsed(reader, body).conversation.tools]


def test_equal_tools_are_the_same_objects() -> None:
    for api in CONVERSING:
        reader = api.make_reader()
        reads = [api.tool("read", description=LONG)]
        (one,), (other,) = (
            parsed(reader, api.body(tools=reads, temperature=heat)).conversation.tools
            for heat in (0.1, 0.9)
        )
        assert one is other
        assert one.description == LONG
        writes = [api.tool("write", description=LONG)]
        assert names(reader, api.body(tools=writes)) == ["write"]


READ = tool("read", description=LONG)


def test_remembered_tools_equal_fresh_ones() -> None:
    reader = Messages()
    search = block("web_search_20250305", name="search")
    body = MESSAGES.body(tools=[READ, tool("find", description=LONG, defer_loading=True), search])
    fresh = MESSAGES.parse(body)
    assert [parsed(reader, body) for _ in range(3)] == [fresh] * 3
    assert fresh.notes == ["web_search_20250305"]


def test_changes_of_tools_stay_in_their_conversation() -> None:
    """`tool_addition` and `tool_removal` change the tools of one request, not those in the memo."""
    reader = Messages()
    added = block("tool_definition", definition=tool("late", description=LONG))
    removed = block("tool_reference", name="read")
    changed = MESSAGES.body(
        user("Hi."),
        message("system", block("tool_addition", tool=added)),
        message("system", block("tool_removal", tool=removed)),
        user("Go on."),
        tools=[READ],
    )
    assert names(reader, changed) == ["read", "late"]
    assert names(reader, MESSAGES.body(tools=[READ])) == ["read"]


def test_least_recently_used_value_is_dropped_first() -> None:
    cache: Memo[bytes] = Memo(max_size=4 * MIN_SIZE)
    made: list[bytes] = []

    def make(data: bytes) -> bytes:
        made.append(data[:1])
        return data

    for letter in (b"a", b"b", b"c", b"d", b"a", b"e", b"a", b"b"):
        part = letter * MIN_SIZE
        assert cache.get(part, make) == part
    assert made == [b"a", b"b", b"c", b"d", b"e", b"b"]
    assert cache.size == 4 * MIN_SIZE
