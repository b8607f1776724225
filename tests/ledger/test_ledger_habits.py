"""Clients that change a turn's calls when they send it back, each in a way of its own: the prompt is
that of a client which changes nothing."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from bench.ledger.clients import CLIENTS, Client, Dialogue
from bench.ledger.sessions import Choices, Model, go_on
from schemas.conversation import Call, Conversation, Message, Part
from services.families.writing import as_json
from tests.ledger.walks import (
    FORMS,
    TEMPLATES,
    Models,
    PlayedSession,
    in_sessions,
)

APIS = ("claude-code", "codex", "openclaw-chat", "opencode-chat", "plain-chat")
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ExitPlanMode", {"plan": "# Plan\n\n1. W."}),
    ("ExitPlanMode", {"plan": "W", "planFilePath": "/home/u/plan.md"}),
    ("ExitPlanMode", {"plan": "W", "allowedPrompts": [{"tool": "Bash", "prompt": "run tests"}]}),
    ("Bash", {"command": "cd /home/u/p && W"}),
    ("Bash", {"command": "find . -exec W {} \\\\;", "description": "W", "timeout": 5000}),
    ("Bash", {"command": "W", "run_in_background": False}),
    ("Edit", {"file_path": "/a", "old_string": "x", "new_string": "W  \nz\t"}),
    ("Edit", {"file_path": "/a", "old_str": "W", "new_str": "z"}),
    ("Edit", {"file_path": "/a", "old_string": "<fnr>W", "new_string": "z", "replace_all": True}),
    ("Write", {"file_path": "/a", "content": "W \n\n b \n"}),
    ("Read", {"file_path": "W", "offset": 20, "limit": None}),
    ("Question", {"text": "W", "note": None, "options": [{"label": "W", "hint": None}]}),
)
"""Calls of tools, `W` for a word: mostly those of Claude Code."""


def lower(call: Call) -> Call:
    """opencode and Kilo, for a tool that is in their list in lower case."""
    return replace(call, name=call.name.lower())


def upper(call: Call) -> Call:
    return replace(call, name=call.name.upper())


def renamed(call: Call) -> Call:
    """Hermes finds the tool that is meant; Claude Code names tools that had another name before."""
    return replace(call, name=f"the_{call.name}_tool")


def without_nulls(call: Call) -> Call:
    """`model_dump(exclude_none=True)`."""

    def drop(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: drop(inner) for name, inner in value.items() if inner is not None}
        return [drop(inner) for inner in value] if isinstance(value, list) else value

    return replace(call, arguments=json.dumps(drop(json.loads(call.arguments))))


def claude_code(call: Call) -> Call:
    """Claude Code 2.1.332 in the folder /home/u/p, for its own tools."""
    sent: dict[str, Any] = json.loads(call.arguments)
    if call.name == "ExitPlanMode":
        sent = {name: sent[name] for name in sent if name not in ("plan", "planFilePath")}
    elif call.name == "Bash":
        command = sent["command"].removeprefix("cd /home/u/p && ")
        sent["command"] = command.replace("\\\\;", "\\;")
    elif call.name == "Edit":
        names = {"old_str": "old_string", "new_str": "new_string"}
        sent = {names.get(name, name): value for name, value in sent.items()}
        sent["old_string"] = sent["old_string"].replace("<fnr>", "<function_results>")
        sent["new_string"] = without_trailing_blanks(sent["new_string"])
        sent = {"replace_all": False, **sent}
    elif call.name == "Write":
        sent["content"] = without_trailing_blanks(sent["content"])
    return replace(call, arguments=json.dumps(sent))


def without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


HABITS: Mapping[str, Callable[[Call], Call]] = {
    "lower": lower,
    "upper": upper,
    "renamed": renamed,
    "without nulls": without_nulls,
    "claude code": claude_code,
}


def with_habit(client: Client, change: Callable[[Call], Call]) -> Client:
    """The client, which changes its calls."""

    def changed(part: Part) -> Part:
        return change(part) if isinstance(part, Call) else part

    def send(dialogue: Dialogue) -> Conversation:
        conversation = client(dialogue)
        messages = [
            Message(message.role, [*map(changed, message.parts)], message.name, message.ids)
            for message in conversation.messages
        ]
        return replace(conversation, messages=messages)

    return send


class Caller(Model):
    """A model that calls these tools."""

    def _written_call(self) -> str:
        name, arguments = self.choose.of(CALLS)
        style = self.setup.family.style
        text = json.dumps(arguments).replace("W", self.word())
        if style.arguments is as_json:
            return style.write_call(name, {}).replace("{}", text)
        return style.write_call(name, json.loads(text))


def tool(name: str) -> dict[str, Any]:
    """A tool with all members of its calls, of any type."""
    members = {member for called, arguments in CALLS if called == name for member in arguments}
    return {"name": name, "schema": {"type": "object", "properties": {m: {} for m in members}}}


@in_sessions(FORMS, TEMPLATES)
def test_client_with_a_habit_gets_the_same_prompt(
    name: str, choose: Choices, models: Models
) -> None:
    client = CLIENTS[choose.of(APIS)]
    habit = with_habit(client, HABITS[choose.of([*HABITS])])
    session = PlayedSession(models.of(name), choose)
    model = Caller(session.setup, session.ledger, choose)
    dialogue = session.dialogue
    dialogue.tools = [*dialogue.tools, *map(tool, dict(CALLS))]
    for _ in range(4):
        prompt = session.prompt(client)
        assert [*session.prompt(habit).ids] == [*prompt.ids]
        output = model.answer(prompt)
        session.learn(output)
        go_on(dialogue, output, model)
