"""The view of a session: its title, its helpers and its agent."""

import json

from schemas.conversation import Call, Client, Conversation, Text
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import TOOLS, Bus, asked
from turnwire_tools.inspector.views import session_view

TASK = Call("toolu_9", "Task", json.dumps({"prompt": "Search the\nhistory.", "n": 1}))
PROMPT = list(range(1000, 1200))


def of(kind: str, question: str, session: str, parent: str | None = None) -> Conversation:
    client = Client(session, "claude-cli/2.1", parent=parent, kind=kind)  # type: ignore[arg-type]
    tools = [] if kind == "background" else TOOLS
    return asked(user(question), client=client, tools=tools)


def test_a_helper_is_linked_with_the_call_that_started_it(bus: Bus) -> None:
    agent = bus.turn(of("main", "Q", "s"), PROMPT, [1], TASK)
    helper = bus.turn(of("helper", "Search the\nhistory.", "s/1", "s"), range(9), [2], Text("ok"))
    title = bus.turn(of("background", "Q", "s"), range(9), [3], Text('{"title": "A title"}'))
    view = session_view(bus.fold, agent.id)
    assert view is not None
    assert view.title == "A title"
    links = {link.session: (link.turn, link.call_id) for link in view.helpers}
    assert links == {helper.id: (agent.id, "toolu_9"), title.id: (agent.id, "")}
    child = session_view(bus.fold, helper.id)
    assert child is not None
    assert child.parent is not None
    assert child.parent.id == agent.id
