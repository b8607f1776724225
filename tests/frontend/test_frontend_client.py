"""Tests which agent a request is taken to come from, with the headers of real clients and with
invented ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from multidict import CIMultiDict

from schemas.conversation import Client, Conversation, Message, OutputFormat, Text, ToolSpec
from schemas.session import tenant_key
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.shared.client import MAX_CHARS, with_client
from services.frontend.turns.interfaces import Dialect

CLAUDE, CODEX, THREAD, OPENCODE = "c08b0507", "01a21999-8c5b", "01a21999-8d20", "ses_de66c548"
SEEN: dict[str, tuple[dict[str, str], Client]] = {
    "claude": ({"x-claude-code-session-id": CLAUDE}, Client(CLAUDE)),
    "claude helper": (
        {
            "x-claude-code-session-id": CLAUDE,
            "x-claude-code-agent-id": "a754",
            "x-claude-code-request-class": "subagent",
        },
        Client(f"{CLAUDE}/a754", parent=CLAUDE, kind="helper"),
    ),
    "claude helper of a helper": (
        {
            "x-claude-code-session-id": CLAUDE,
            "x-claude-code-agent-id": "a022",
            "x-claude-code-parent-agent-id": "ae92",
        },
        Client(f"{CLAUDE}/a022", parent=f"{CLAUDE}/ae92", kind="helper"),
    ),
    "claude title": (
        {"x-claude-code-session-id": CLAUDE, "x-claude-code-request-class": "auxiliary"},
        Client(CLAUDE, kind="background"),
    ),
    "claude compaction": (
        {"x-claude-code-session-id": CLAUDE, "x-claude-code-request-class": "compaction"},
        Client(CLAUDE),
    ),
    "codex": ({"session-id": CODEX, "thread-id": CODEX}, Client(CODEX)),
    "codex helper": (
        {
            "session-id": CODEX,
            "thread-id": THREAD,
            "x-codex-parent-thread-id": CODEX,
            "x-openai-subagent": "collab_spawn",
        },
        Client(THREAD, parent=CODEX, kind="helper"),
    ),
    "codex memories": (
        {"session-id": CODEX, "thread-id": THREAD, "x-openai-subagent": "memory_consolidation"},
        Client(THREAD, kind="background"),
    ),
    "an older codex": ({"conversation_id": CODEX, "session_id": CODEX}, Client(CODEX)),
    "opencode": ({"x-session-affinity": OPENCODE, "x-session-id": OPENCODE}, Client(OPENCODE)),
    "opencode helper": (
        {"x-session-affinity": "ses_2", "x-session-id": "ses_2", "x-parent-session-id": OPENCODE},
        Client("ses_2", parent=OPENCODE, kind="helper"),
    ),
    "a plugin of Dynamo's": (
        {"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "e"},
        Client("d", parent="e", kind="helper"),
    ),
    "nobody": ({"user-agent": "curl"}, Client(user_agent="curl")),
}
"""Headers that clients send, with shortened ids."""
NAMES = sorted({name for headers, _ in SEEN.values() for name in headers})
DIALECTS: list[tuple[Dialect, dict[str, Any]]] = [
    (Messages(), {"max_tokens": 9, "messages": [{"role": "user", "content": "Q"}]}),
    (Chat(), {"messages": [{"role": "user", "content": "Q"}]}),
    (Responses(), {"input": "Q"}),
    (Completions(), {"prompt": "Q"}),
]
ASKED = Conversation("m", [Message("user", [Text("Q")])], tools=[ToolSpec("ls")])


@pytest.mark.parametrize(
    ("dialect", "body"), DIALECTS, ids=[dialect.name for dialect, _ in DIALECTS]
)
@pytest.mark.parametrize("who", SEEN)
def test_clients_are_recognized_in_every_api(
    dialect: Dialect, body: dict[str, Any], who: str
) -> None:
    headers, client = SEEN[who]
    parsed = dialect.parse(json.dumps({"model": "m"} | body).encode(), headers)
    assert [
        replace(conversation.client, compare=None) for conversation in parsed.conversations
    ] == [client]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.text() | st.text("ab/", max_size=3)),
    st.text() | st.none(),
)
def test_any_headers_give_short_printable_names(headers: dict[str, str], named: str | None) -> None:
    client = with_client(ASKED, headers, named).client
    for name in (client.session, client.parent):
        assert name is None or (0 < len(name) <= 2 * MAX_CHARS + 1 and name.isprintable())
    assert (client.parent is None) or (
        client.session is not None and client.parent != client.session
    )
    assert client.kind == "background" or (client.kind == "helper") == (client.parent is not None)


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_ids_stay_different(one: str, other: str) -> None:
    first, second = (with_client(ASKED, {}, name).client.session for name in (one, other))
    assert (first == second) == (one == other)
    assert first == (one if len(one) <= MAX_CHARS and one.isprintable() else first)


@given(
    st.sampled_from(["#", ""]),
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.text(min_size=MAX_CHARS + 1),
)
def test_an_id_that_looks_like_a_hash_is_not_that_of_another_id(
    sign: str, digits: str, long: str
) -> None:
    hashed = with_client(ASKED, {}, long).client.session
    assert hashed not in (
        with_client(ASKED, {}, name).client.session for name in (sign + digits, hashed)
    )


@given(st.sampled_from(NAMES), st.lists(st.sampled_from(["", "a", "b"]), max_size=4))
def test_first_value_of_a_repeated_header_that_is_not_empty_counts(
    name: str, values: list[str]
) -> None:
    base = {"x-session-id": "s"} if "agent" in name or "parent" in name else {}
    repeated = CIMultiDict([*base.items(), *((name.title(), value) for value in values)])
    once = base | dict.fromkeys([name] if any(values) else [], next(filter(None, values), ""))
    assert with_client(ASKED, repeated) == with_client(ASKED, once)


@given(st.text(), st.text() | st.none(), st.text() | st.none(), st.text() | st.none())
def test_keys_of_tenants_differ(
    question: str, session: str | None, tenant: str | None, other: str | None
) -> None:
    def key(name: str | None) -> str:
        client = Client(session, tenant=name)
        return tenant_key(
            Conversation("m", [Message("user", [Text(question)])], client=client), session
        )

    assert (key(tenant) == key(other)) == ((tenant or "") == (other or ""))


TITLE = {"type": "object", "properties": {"title": {"type": "string"}}}
OPENCODE_TITLE = "You are a title generator. You output ONLY a thread title."


@pytest.mark.parametrize(
    ("conversation", "session", "kind"),
    [
        (
            Conversation("m", ASKED.messages, format=OutputFormat("json_schema", TITLE)),
            "s",
            "background",
        ),
        (Conversation("m", ASKED.messages, system=[Text(OPENCODE_TITLE)]), "s", "background"),
        (
            Conversation("m", [Message("developer", [Text(OPENCODE_TITLE)]), *ASKED.messages]),
            "s",
            "background",
        ),
        (Conversation("m", ASKED.messages, system=[Text(OPENCODE_TITLE)]), None, "main"),
        (
            Conversation("m", ASKED.messages, tools=ASKED.tools, system=[Text(OPENCODE_TITLE)]),
            "s",
            "main",
        ),
        (Conversation("m", [Message("user", [Text(OPENCODE_TITLE)])]), "s", "main"),
        (
            Conversation(
                "m", [*ASKED.messages, Message("assistant", [])], system=[Text(OPENCODE_TITLE)]
            ),
            "s",
            "main",
        ),
        (
            Conversation(
                "m", ASKED.messages, format=OutputFormat("json_schema", {"properties": 5})
            ),
            "s",
            "main",
        ),
        (Conversation("m", ASKED.messages, format=OutputFormat("json_object")), "s", "main"),
        (Conversation("m", []), "s", "main"),
    ],
)
def test_titles_are_background(conversation: Conversation, session: str | None, kind: str) -> None:
    assert with_client(conversation, {}, session).client.kind == kind
