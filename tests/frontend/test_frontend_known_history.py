"""Requests that go on from earlier ones are read as by a server that has never seen the session."""

import base64
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.errors import Invalid
from schemas.frames import TurnRequest
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.errors import explain
from services.frontend.apis.messages.history import History, is_plain
from services.frontend.apis.messages.request import Messages, parse
from services.frontend.apis.messages.tools import read_tools
from services.frontend.apis.responses.dialect import Responses, ResponsesAsk
from services.frontend.apis.shared.known.history import KnownHistory
from services.frontend.apis.shared.known.requests import RequestReader
from services.frontend.turns.known_turns import SessionTurns, encode_request
from services.frontend.turns.media.notice import notice, without_notices
from services.frontend.turns.media.parts import media_in, media_of
from tests.conftest import examples

MESSAGES = 60
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
Said = list[dict[str, Any]]


def spoken(count: int = MESSAGES, text: str = "a few words that differ") -> Said:
    """An agent's session in Messages; the last message may be of either role."""
    said: Said = []
    for number in range(count):
        call = f"toolu_{number - number % 2}"
        if number % 2:
            use = {"type": "tool_use", "id": call, "name": "read", "input": {"path": f'"messages":[{number}'}}
            thought = {"type": "thinking", "thinking": f"hm {number}", "signature": "x"}
            said.append({"role": "assistant", "content": [thought, {"type": "text", "text": text}, use]})
        else:
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number - 2}", "content": f"{text} {number} é \\"}
            said.append({"role": "user", "content": [result] if number else text})
    return said


def chatted(count: int = MESSAGES, text: str = "a few words that differ") -> Said:
    """The same in Chat, with two results for each turn."""
    said: Said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    for number in range(count // 3):
        ids = [f"c{number}a", f"c{number}b"]
        calls = [{"id": one, "type": "function", "function": {"name": "read", "arguments": "{}"}} for one in ids]
        said.append({"role": "assistant", "content": text, "reasoning_content": "hm", "tool_calls": calls})
        said += [{"role": "tool", "tool_call_id": one, "content": f"{text} {one}"} for one in reversed(ids)]
    return said


def items(count: int = MESSAGES, text: str = "a few words that differ") -> Said:
    """The same in Responses."""
    said: Said = [{"type": "message", "role": "user", "content": text}]
    for number in range(count // 4):
        kept = [{"type": "summary_text", "text": f"hm {number}"}] if number % 3 else []
        said.append({"type": "reasoning", "id": f"rs_{number}", "summary": kept, "encrypted_content": "x"})
        said.append({"role": "assistant", "content": [{"type": "output_text", "text": text}], "id": f"msg_{number}"})
        said.append({"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"})
        said.append({"type": "function_call_output", "call_id": f"c{number}", "output": f"{text} {number}"})
    return said


def items_body(said: Said, **more: Any) -> bytes:
    return json.dumps({"model": "m", "instructions": '"input":[', "input": said, "store": False} | more).encode()


def body_of(said: Said, **more: Any) -> bytes:
    """Messages in the middle: tools with a member of their name before them."""
    tool = {"name": "read", "description": "Reads. " * 60, "input_schema": {"properties": {"messages": {}}}}
    return json.dumps(
        {"model": "m", "max_tokens": 9, "tools": [tool], "messages": said, "stream": True} | more
    ).encode()


def chat_body(said: Said, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": said} | more, ensure_ascii=False, separators=(",", ":")).encode()


def outcome(parse: Callable[[bytes, Mapping[str, str]], Any], body: bytes, headers: Mapping[str, str]) -> Any:
    try:
        return parse(body, headers)
    except Invalid as error:
        return error.info


def check(
    api: Messages | Chat | Responses, body: bytes, headers: Mapping[str, str] | None = None
) -> Conversation | None:
    """The conversation of a body, which is the one that a fresh server finds in it; None where it is refused."""
    found, fresh = (outcome(one.parse, body, headers or {}) for one in (api, type(api)()))
    if not hasattr(found, "conversation"):
        assert found == fresh
        return None
    if isinstance(found, ResponsesAsk):
        found, fresh = (replace(one, request=replace(one.request, begun=None)) for one in (found, fresh))
    assert found == fresh
    conversation: Conversation = found.conversation
    request = TurnRequest("t", "f", conversation)
    assert encode_request(request) == msgspec.json.encode(replace(request, conversation=fresh.conversation))
    assert media_of(conversation) == media_in(conversation.turns)
    assert without_notices(conversation) == without_notices(fresh.conversation)
    return conversation


def known_turns(conversation: Conversation | None) -> int:
    assert conversation is not None
    turns = conversation.turns
    return len(turns.known.turns) if isinstance(turns, SessionTurns) else 0


@pytest.mark.parametrize(
    ("make", "said", "write"),
    [(Messages, spoken(), body_of), (Chat, chatted(), chat_body), (Responses, items(), items_body)],
)
def test_a_session_that_grows(
    make: Callable[[], Messages | Chat | Responses], said: Said, write: Callable[[Said], bytes]
) -> None:
    api = make()
    former: Conversation | None = None
    for count in range(1, len(said)):
        conversation = check(api, write(said[:count]))
        shared = known_turns(former) if former is not None else 0
        if conversation is not None and former is not None:
            assert all(conversation.turns[at] is former.turns[at] for at in range(shared))
        former = conversation or former
    assert known_turns(former) > len(former.turns if former else []) - 30


@pytest.mark.parametrize("at", [0, 1, 2, 30, MESSAGES - 2])
def test_a_changed_history_is_read_as_it_is(at: int) -> None:
    api, said = Messages(), spoken()
    assert known_turns(check(api, body_of(said[:-1])))
    said[at] = spoken(text="other words")[at]
    conversation = check(api, body_of(said))
    assert conversation is not None
    assert "other words" in str(conversation.turns[at])
    check(api, body_of(said[:at] + said[at + 2 :]))


def test_a_mistake_behind_the_known_beginning_is_reported_in_its_place() -> None:
    api, said = Messages(), spoken()
    assert known_turns(check(api, body_of(said[:-1])))
    for wrong in (
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_none", "content": ""}]},
        {"role": "user", "content": [{"type": "unheard_of"}]},
        {"role": "nobody", "content": "Hi."},
        {"role": "user"},
    ):
        assert check(api, body_of([*said, wrong])) is None
    assert check(api, body_of(said)[:-1]) is None
    assert check(api, body_of(said, tools=[{"name": 3}])) is None


@pytest.mark.parametrize("at", [0, 1, 2, 3, 30, 58])
def test_changed_items_are_read_as_they_are(at: int) -> None:
    api, said = Responses(), items()
    assert known_turns(check(api, items_body(said[:-1])))
    check(api, items_body(said[:at] + items(text="other words")[at : at + 1] + said[at + 1 :]))
    assert known_turns(check(api, items_body(said)))
    for wrong in ({"type": "function_call_output", "call_id": "none", "output": ""}, {"type": "item_reference"}, 3):
        assert check(api, items_body([*said, wrong])) is None  # type: ignore[list-item]
    check(api, items_body(said)[:-1] + b',"input":"Hi."}')
    check(api, items_body(said)[:-1] + b',"input":[]}')
    check(api, items_body(said, model="another"))
    assert known_turns(check(api, items_body(said, model="another")))


@pytest.mark.parametrize(
    "extra",
    [
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late", "parameters": {}}]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "web_search_call", "action": {"query": "x"}},
        {"type": "unheard_of"},
        {"role": "developer", "content": "Be brief."},
    ],
)
def test_items_that_change_the_request_are_read_each_time(extra: dict[str, Any]) -> None:
    api, said = Responses(), items()
    for count in (30, 31, 50, 60):
        check(api, items_body([*said[:7], extra, *said[7:count]]))


def test_a_sealed_summary_is_opened_for_each_model() -> None:
    class Opener:
        def __init__(self, text: str) -> None:
            self.text = text

        def seal(self, text: str) -> str:
            return text

        def open(self, blob: str) -> str | None:
            return f"{self.text} {blob}"

    api, said = Responses(), items()
    for model in ("one", "other", "one", "other"):
        request = api.decode(items_body(said, model=model), {})
        turns = api.understand(request, {}, sealer=Opener(model)).conversation.turns
        assert f"{model} x" in str(turns)
        assert ("one x" in str(turns)) is (model == "one")


@pytest.mark.parametrize("name", ["messages", "mess\\u0061ges"])
@pytest.mark.parametrize("second", [[], [{"role": "user", "content": "Hi."}], spoken(25)])
def test_a_list_that_comes_twice(name: str, second: Said) -> None:
    """The last one counts, as for any decoder."""
    api, body = Messages(), body_of(spoken())
    check(api, body)
    twice = body[:-1] + b',"' + name.encode() + b'":' + json.dumps(second).encode() + b"}"
    for _ in range(2):
        check(api, twice)
        check(api, body)
    first = b'{"%b": %b, ' % (name.encode(), json.dumps(second).encode()) + body[1:]
    for _ in range(2):
        check(api, first)


def test_a_list_that_only_looks_like_the_messages() -> None:
    api, said = Messages(), spoken()
    for _ in range(2):
        body = json.dumps({"metadata": {"x": {"messages": said}}, "model": "m", "max_tokens": 9, "messages": said})
        check(api, body.encode())


def test_messages_whose_meaning_others_decide_are_read_each_time() -> None:
    api, said = Messages(), spoken()
    note = {"role": "system", "content": "For now.", "clear_at": "next_user_message"}
    late = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "late"}}}
    used = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    summary = {"type": "compaction", "content": "So far: nothing."}
    for extra in (
        note,
        {"role": "system", "content": [late]},
        {"role": "assistant", "content": [used]},
        {"role": "assistant", "content": [summary]},
    ):
        for count in (30, 31, 50, 60):
            check(api, body_of([*said[:7], extra, *said[7:count]]))
            search = {"type": "web_search_20250305", "name": "web_search"}
            check(api, body_of([*said[:7], extra, *said[7:count]], tools=[search]))


def test_media_and_notes_are_found_in_known_turns() -> None:
    api, said = Messages(), spoken()
    said[0] = {"role": "user", "content": [IMAGE]}
    said[1]["content"].insert(1, {"type": "text", "text": f"Done.{notice(['image'])}"})
    for count in (30, 40, 50):
        conversation = check(api, body_of(said[:count]))
        assert conversation is not None
        assert len(media_of(conversation)) == 1
        assert without_notices(conversation)[1] == {"image"}
    assert known_turns(conversation)


def test_documents_that_are_still_to_be_read_are_not_kept() -> None:
    api, said = Messages(), spoken()
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"%PDF-1.4 x").decode()}
    said[0] = {"role": "user", "content": [{"type": "document", "source": source}]}
    for count in (30, 40):
        assert not known_turns(check(api, body_of(said[:count])))


def test_half_a_surrogate_pair_in_a_history() -> None:
    api, said = Messages(), spoken()
    body = [body_of(said[:count]).replace(b"a few words", b"a \\ud83d few words", 3) for count in (30, 40, 50)]
    for one in body:
        check(api, one)


def test_callers_are_apart() -> None:
    api, body = Messages(), body_of(spoken())
    one, other = {"x-api-key": "a"}, {"x-api-key": "b"}
    first = [check(api, body, headers) for headers in (one, one, other)]
    assert all(map(known_turns, first))
    turns = [conversation.turns[3] for conversation in first if conversation is not None]
    assert turns[0] is turns[1]
    assert turns[0] is not turns[2]


def test_memory_is_bounded() -> None:
    known: KnownHistory[History] = KnownHistory(is_plain, max_bytes=400_000)
    for session in range(100):
        reader = RequestReader(wire.Body, read_tools, explain, sessions=known)
        parse(body_of(spoken(text=f"session {session}")), {}, reader=reader)
        assert 0 < known.size <= 400_000


@given(seed=st.integers(0, 10**9), responses=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_any_change_is_read_as_by_a_fresh_server(seed: int, responses: bool) -> None:
    source, api = random.Random(seed), Responses() if responses else Messages()
    body = items_body(items(40)) if responses else body_of(spoken(40))
    check(api, body)
    for _ in range(6):
        at = source.randrange(len(body))
        change = source.choice((b"", b'"', b"}", b"]", b",", b"[", b"{", b"\\", b" ", body[at : at + 40]))
        changed = body[:at] + change + body[at + source.choice((0, 1, 1, 5)) :]
        check(api, changed)
        check(api, changed)
