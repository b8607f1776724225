"""Property test of message threads: for any session, the request that continues a thread makes the same
conversation as the whole history."""

import json
import random
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import HostedResult, HostedResults, Prepared, TurnEvent, WebSource
from services.frontend.apis.messages.request import Messages, MessagesRequest
from services.frontend.content.image import without_images
from services.frontend.stored.record import StoredReply, decode
from tests.kit.bodies import PNG, SCHEMA, Json, block, message, messages, tool, tool_result, user
from tests.kit.bodies import text as words
from tests.kit.events import call, finish, reasoning, text
from tests.kit.examples import chances
from tests.kit.telling import INFO

SEARCH = block("web_search_20250305", name="web_search")
TEXTS = ("Hi.", "", "  ", "Größe \N{SNOWMAN} \ud83d", "line\n\nline", '{"a": 1}', "x" * 5000)


class Client:
    """Draws a session, and keeps its history as a client does."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.history: list[Raw] = []
        """The messages so far. Answers keep their spelling."""
        self.head = self._head()
        self._open_calls: list[str] = []
        self._calls = 0
        self._added = 0

    def _head(self) -> Json:
        chance = self.chance
        tools = [tool(), tool("late", defer_loading=True), SEARCH, tool("other", strict=True)]
        head: Json = {"tools": chance.sample(tools, chance.randint(0, 4))}
        system = chance.choice(["", "Be kind.", [words("Be kind."), words("And brief.")]])
        return head | ({"system": system} if system else {})

    def fields(self) -> Json:
        """Members that each request may have."""
        chance = self.chance
        edits = [
            block("clear_thinking_20251015", keep=block("thinking_turns", value=1)),
            block("clear_tool_uses_20250919", keep=block("tool_uses", value=1)),
            block("compact_20260112"),
        ]
        fields: list[Json] = [
            {"context_management": {"edits": chance.sample(edits, chance.randint(0, 3))}},
            {"thinking": block("adaptive", display="omitted")},
            {"thinking": block("disabled"), "temperature": 0.5},
            {"output_config": {"effort": "low"}, "stop_sequences": ["x"]},
            {"cache_control": block("ephemeral", ttl="1h")},
            {"metadata": {"user_id": '{"session_id": "s1"}'}, "max_tokens": 9},
        ]
        return chance.choice([{}, *fields])

    def ask(self) -> list[Json]:
        """The messages of the next request."""
        chance = self.chance
        asked: list[Json] = []
        if self._open_calls and chance.random() < 0.9:
            results = [self._result(id) for id in self._open_calls]
            chance.shuffle(results)
            more = [words(chance.choice(TEXTS))] if chance.random() < 0.2 else []
            asked.append(user(*results, *more))
        for _ in range(chance.choice([0, 0, 1])):
            asked.append(self._system_message())
        if not asked or chance.random() < 0.5:
            asked.append(self._question())
        return asked

    def _result(self, id: str) -> Json:
        content = self.chance.choice(
            [
                "seen",
                "",
                [words("seen"), self._image()],
                [block("tool_reference", tool_name="late")],
            ]
        )
        return tool_result(id, content, is_error=self.chance.choice([None, True]))

    def _image(self) -> Json:
        return block("image", source=block("base64", media_type="image/png", data=PNG))

    def _question(self) -> Json:
        chance = self.chance
        said = words(chance.choice(TEXTS), cache_control=chance.choice([None, block("ephemeral")]))
        document = block("document", source=block("text", media_type="text/plain", data="A."))
        found = block("search_result", source="s", title="t", content=[words("F.")])
        return chance.choice(
            [user("Go on."), user(said), user(self._image(), said), user(document, found, said)]
        )

    def _system_message(self) -> Json:
        chance = self.chance
        self._added += 1
        definition = block("tool_definition", definition=tool(f"new{self._added}"))
        name = chance.choice(["look", "late", "other", f"new{chance.randint(1, 3)}"])
        changes = [
            block("tool_addition", tool=definition),
            block("tool_addition", tool=block("tool_reference", name=name)),
            block("tool_removal", tool=block("tool_reference", name=name)),
        ]
        return chance.choice(
            [
                message("system", "Be careful.", clear_at="next_user_message"),
                message("system", *chance.sample(changes, chance.randint(1, 3))),
                {"role": "system", "output_config": {"effort": "high"}},
            ]
        )

    def reply(self) -> list[TurnEvent]:
        """The events of the next answer."""
        chance = self.chance
        events: list[TurnEvent] = []
        blocks = 0
        self._open_calls = []
        for _ in range(chance.randint(0, 4)):
            kind = chance.choice(["reasoning", "text", "call", "cut call", "search"])
            if kind == "reasoning":
                events += reasoning(blocks, "Hm. \N{SNOWMAN}")
            elif kind == "text":
                events += text(blocks, chance.choice(["So.", "x" * 3000, " "]))
            elif kind == "search":
                events += self._search(blocks)
            else:
                events += self._call(blocks, complete=kind == "call")
            blocks += 1
        return [*events, finish(blocks)]

    def _call(self, number: int, *, complete: bool) -> list[TurnEvent]:
        self._calls += 1
        id = f"toolu_{self._calls}"
        self._open_calls.append(id)
        arguments = self.chance.choice(['{"a": "\\u00e9", "n": 1.50}', '{\n "a": [1, 2]}', "{}"])
        if not complete:
            arguments = arguments[:-3]
        return call(number, "look", arguments, call_id=id, complete=complete)

    def _search(self, number: int) -> list[TurnEvent]:
        self._calls += 1
        id = f"toolu_{self._calls}"
        (start, *rest) = call(number, "web_search", '{"query": "q"}', call_id=id)
        hosted = msgspec.structs.replace(start, kind="hosted")
        source = WebSource("https://a.example/", "T", "Text.", None)
        result = HostedResult(id, "web_search", "web_search", '{"query": "q"}', [source])
        return [hosted, *rest, HostedResults([result], "0" * 24)]


@pytest.mark.parametrize("stored", [False, True])
def test_continued_thread_makes_the_conversation_of_the_whole_history(stored: bool) -> None:
    """`stored`: the replies were read from the bucket."""
    dialect = Messages(["web_search"])
    for chance in chances("threads", 200, 40):
        client = Client(chance)
        replies: list[StoredReply] = []
        for number in range(chance.randint(2, 9)):
            fields = client.fields()
            asked = [Raw(json.dumps(message).encode()) for message in client.ask()]
            whole = read(dialect, [*client.history, *asked], client.head | fields)
            if replies:
                previous = block("continue", previous_message_id=replies[-1].id)
                part = read(dialect, asked, fields | {"thread": previous}, replies)
            else:
                part = read(dialect, asked, client.head | fields | {"thread": block("create")})
            check_equal(part, whole)
            record, content = answered(part, client.reply(), f"{number:024x}")
            replies.append(from_bucket(record) if stored else record)
            reply = {"role": "assistant", "content": content}
            client.history += [*asked, Raw(msgspec.json.encode(reply))]


def read(
    dialect: Messages, history: list[Any], fields: Json, replies: list[StoredReply] | None = None
) -> MessagesRequest:
    body = msgspec.json.encode(messages(**fields) | {"messages": history})
    return dialect.convert(dialect.decode(body, {}), {}, replies or [])


def check_equal(part: MessagesRequest, whole: MessagesRequest) -> None:
    """Checks that both make the same prompt, and the same edits of it."""
    for conversation, other in zip(prompts(part), prompts(whole), strict=True):
        assert conversation == other
        assert msgspec.msgpack.encode(conversation) == msgspec.msgpack.encode(other)
    assert (part.notes, part.compact) == (whole.notes, whole.compact)


def prompts(request: MessagesRequest) -> list[Conversation]:
    """The conversation of a request, and the one before thinking was cleared; images as a model
    without vision gets them."""
    found = [request.conversation]
    if request.edits is not None:
        found.append(msgspec.structs.replace(request.conversation, messages=request.edits.before))
    return list(map(without_images, found))


def answered(
    request: MessagesRequest, events: list[TurnEvent], turn: str
) -> tuple[StoredReply, Raw]:
    """The record of the reply to a request, and the content that its client gets."""
    collector = request.collector(replace(INFO, turn=turn))
    collector.start([Prepared(prompt_tokens=1, max_tokens=1)])
    collector.add(events)
    assert request.thread is not None
    record = request.thread.record(collector.message(), created=0, tenant=None)
    return record, msgspec.json.decode(collector.body(), type=dict[str, Raw])["content"]


def from_bucket(record: StoredReply) -> StoredReply:
    read_back = decode(msgspec.json.encode(record))
    assert isinstance(read_back, StoredReply)
    return read_back


def test_record_has_only_what_its_request_added() -> None:
    dialect = Messages()
    head: Json = {"system": "Be kind.", "tools": [tool()]}
    first = read(dialect, [user("One.")], head | {"thread": block("create")})
    reply, _ = answered(first, [*text(0, "So."), finish(1)], "1" * 24)
    assert len(reply.messages) == 2
    assert json.loads(bytes(reply.head))["tools"][0]["input_schema"] == SCHEMA
    following = {"thread": block("continue", previous_message_id=reply.id)}
    second = read(dialect, [user("Two.")], following, [reply])
    last, _ = answered(second, [*text(0, "So."), finish(1)], "2" * 24)
    assert (last.previous, len(last.messages), bytes(last.head)) == (reply.id, 2, b"null")
    assert last.size < reply.size + 1000
    assert isinstance(last.messages[0], Raw)
