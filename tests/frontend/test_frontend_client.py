"""Tests which agent a request is taken to come from, with the headers of real clients."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Message, OutputFormat, Text, ToolSpec
from services.frontend.apis.shared.client import MAX_CHARS, with_client
from tests.kit.bodies import APIS
from tests.kit.conversations import assistant, conversation, user
from tests.kit.every import for_rows

CLAUDE = "c08b0507"
CODEX = "01a21999-8c5b"
THREAD = "01a21999-8d20"
OPENCODE = "ses_de66c548"


def claude(agent: str = "", parent: str = "", kind: str = "") -> dict[str, str]:
    """The headers of Claude Code."""
    headers = {
        "session-id": CLAUDE,
        "agent-id": agent,
        "parent-agent-id": parent,
        "request-class": kind,
    }
    return {f"x-claude-code-{name}": value for name, value in headers.items() if value}


def codex(thread: str = CODEX, **more: str) -> dict[str, str]:
    """The headers of Codex."""
    others = {f"x-{name.replace('_', '-')}": value for name, value in more.items()}
    return {"session-id": CODEX, "thread-id": thread} | others


def opencode(session: str = OPENCODE) -> dict[str, str]:
    """The headers of OpenCode."""
    return {"x-session-affinity": session, "x-session-id": session}


SEEN: dict[str, tuple[dict[str, str], Client]] = {
    "claude": (claude(), Client(CLAUDE)),
    "claude helper": (
        claude("a754", kind="subagent"),
        Client(f"{CLAUDE}/a754", parent=CLAUDE, kind="helper"),
    ),
    "claude helper of a helper": (
        claude("a022", "ae92"),
        Client(f"{CLAUDE}/a022", parent=f"{CLAUDE}/ae92", kind="helper"),
    ),
    "claude title": (claude(kind="auxiliary"), Client(CLAUDE, kind="background")),
    "claude compaction": (claude(kind="compaction"), Client(CLAUDE)),
    "codex": (codex(), Client(CODEX)),
    "codex helper": (
        codex(THREAD, codex_parent_thread_id=CODEX, openai_subagent="collab_spawn"),
        Client(THREAD, parent=CODEX, kind="helper"),
    ),
    "codex memories": (
        codex(THREAD, openai_subagent="memory_consolidation"),
        Client(THREAD, kind="background"),
    ),
    "opencode": (opencode(), Client(OPENCODE)),
    "opencode helper": (
        opencode("ses_2") | {"x-parent-session-id": OPENCODE},
        Client("ses_2", parent=OPENCODE, kind="helper"),
    ),
    "a plugin of Dynamo's": (
        {"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "e"},
        Client("d", parent="e", kind="helper"),
    ),
    "nobody": ({"user-agent": "curl"}, Client(user_agent="curl")),
}
"""Headers that clients send, with shortened ids."""
ASKED = conversation(user("Q"), tools=[ToolSpec("ls")])


@for_rows([*SEEN.values()])
def test_clients_are_recognized_in_every_api(headers: dict[str, str], client: Client) -> None:
    for api in APIS:
        (conversation,) = api.parse(api.body(), headers).conversations
        assert replace(conversation.client, compare=None) == client, api.name


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=MAX_CHARS + 1))
def test_different_ids_stay_different(one: str, other: str, long: str) -> None:
    def session(name: str | None) -> str | None:
        return with_client(ASKED, {}, name).client.session

    assert (session(one) == session(other)) == (one == other)
    assert session(one) == one or len(one) > MAX_CHARS or not one.isprintable()
    hashed = session(long)
    assert hashed is not None
    assert session(hashed) != hashed, "an id that looks like a hash is not that of another id"


TITLE = OutputFormat("json_schema", {"type": "object", "properties": {"title": {}}})
OTHER = OutputFormat("json_schema", {"properties": 5})
SYSTEM = [Text("You are a title generator. You output ONLY a thread title.")]
DEVELOPER = Message("developer", [*SYSTEM])


@for_rows(
    [
        (conversation(format=TITLE), "s", "background"),
        (conversation(system=SYSTEM), "s", "background"),
        (conversation(DEVELOPER, user("Q")), "s", "background"),
        (conversation(system=SYSTEM), None, "main"),
        (conversation(tools=ASKED.tools, system=SYSTEM), "s", "main"),
        (conversation(Message("user", [*SYSTEM])), "s", "main"),
        (conversation(user("Q"), assistant(), system=SYSTEM), "s", "main"),
        (conversation(format=OTHER), "s", "main"),
    ],
)
def test_titles_are_background(conversation: Conversation, session: str | None, kind: str) -> None:
    assert with_client(conversation, {}, session).client.kind == kind
