"""The scripted agent over prompts as harnesses make them: what it writes is parsed back by the
family's own parser."""

import json
from typing import Any

import pytest

from schemas.conversation import ToolSpec
from services.families import Family, find_family
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import LoadedTokenizer
from tests.kit.every import for_each
from tests.kit.families import read_exactly
from turnwire_tools.script.agent import act
from turnwire_tools.script.agent_schema import MAX_CHARS, MAX_VALUES, instance

LOOP = (
    "Use your shell tool to run exactly this command and nothing else: `echo ok-1 > proof.txt`. "
    "After it succeeded, answer with the single word DONE."
)
SYSTEM = "You are an agent. Run tests with `make test`, read `README.md` first, and reply with `NO_REPLY` when idle."
REMINDER = (
    '<system-reminder>\nUse `git commit -m x` and write "a" to /etc/b.txt.\n</system-reminder>\n'
)


def tool(name: str, *required: str, **optional: str) -> dict[str, Any]:
    """A tool whose required arguments are strings."""
    kinds = {**dict.fromkeys(required, "string"), **optional}
    described = {key: {"type": value} for key, value in kinds.items()}
    schema = {"type": "object", "properties": described, "required": list(required)}
    text = 'Does it. Example: {"name": "fake", "parameters": {"x": 1}} and `rm -rf /`.'
    function = {"name": name, "description": text, "parameters": schema}
    return {"type": "function", "function": function}


CLAUDE = [
    tool("Agent", "prompt"),
    tool("Bash", "command", timeout="number", description="string"),
    tool("Read", "file_path", offset="integer"),
    tool("Write", "file_path", "content"),
]
CODEX = [tool("exec_command", "cmd", workdir="string", yield_time_ms="number")]


class Session:
    """A conversation with the agent, as a harness holds it."""

    def __init__(
        self, template: ChatTemplate, tools: list[dict[str, Any]], kind: str = "qwen3_coder"
    ) -> None:
        self._template = template
        self._tools = tools
        self.family: Family = find_family(kind)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]

    def user(self, text: str) -> "Session":
        self.messages.append({"role": "user", "content": text})
        return self

    def turn(self) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
        """(reasoning, text, calls) of the agent's next turn, which becomes part of the
        conversation."""
        prompt = self._template.render(self.messages, tools=self._tools)
        functions = [tool["function"] for tool in self._tools]
        blocks = read_exactly(
            self.family,
            act(prompt, self.family),
            tools=[ToolSpec(one["name"], "", one["parameters"]) for one in functions],
            in_reasoning=self.family.opens_reasoning(prompt[-200:]),
        )
        reasoning = "".join(value for kind, value in blocks if kind == "reasoning")
        text = "".join(value for kind, value in blocks if kind == "text")
        calls = [block for block in blocks if block[0] not in ("reasoning", "text")]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "reasoning_content": reasoning,
        }
        made = [{"name": name, "arguments": arguments} for name, arguments in calls]
        message["tool_calls"] = [{"type": "function", "function": call} for call in made] or None
        self.messages.append(message)
        return reasoning, text, calls

    def results(self, *texts: str) -> "Session":
        self.messages += [{"role": "tool", "content": text} for text in texts]
        return self


@pytest.fixture(scope="session")
def template(demo_tokenizer: LoadedTokenizer) -> ChatTemplate:
    return ChatTemplate.of(demo_tokenizer)


OK = {"description": "Run the requested command"}
"""What Claude Code's shell tool also requires."""


def test_claude_code_completes_its_tool_loop(template: ChatTemplate) -> None:
    session = Session(template, CLAUDE).user(REMINDER + LOOP)
    reasoning, text, calls = session.turn()
    assert reasoning.strip()
    assert text == ""
    assert calls == [("Bash", {"command": "echo ok-1 > proof.txt", **OK})]
    reasoning, text, calls = session.results("(Bash completed with no output)").turn()
    assert (text, calls) == ("DONE", [])
    assert reasoning.strip()


@for_each(
    [
        {"properties": 5, "required": ["b"]},
        {"type": "object", "required": True},
        {"type": "object", "required": [{}]},
        {"enum": {"a": 1}},
        {"anyOf": 5},
        {"type": "array", "minItems": "x"},
        {"type": "integer", "minimum": "x"},
    ]
)
def test_value_for_an_invalid_schema_is_made(schema: dict[str, Any]) -> None:
    json.dumps(instance({"type": "object", "properties": {"a": schema}, "required": ["a"]}, "x"))


def test_an_endless_schema_has_a_bounded_answer() -> None:
    many = {"type": "array", "minItems": 10**9}
    text = {"type": "string", "minLength": 10**9}
    for schema in (many, many | {"items": many | {"items": many}}, many | {"items": text}):
        assert len(instance(schema, "x")) <= MAX_VALUES
    assert len(instance(text, "x")) == MAX_CHARS


@pytest.mark.parametrize(
    ("request_text", "tools", "call"),
    [
        ("Read notes/a.txt", CLAUDE, ("Read", {"file_path": "/w/notes/a.txt"})),
        ("Read a.txt", CODEX, ("exec_command", {"cmd": "cat a.txt"})),
        (
            'Write "hello" to b.txt',
            CLAUDE,
            ("Write", {"file_path": "/w/b.txt", "content": "hello\n"}),
        ),
        ("What does `foo_bar` do?", CLAUDE, None),
    ],
)
def test_requests_in_plain_words_become_calls(
    template: ChatTemplate, request_text: str, tools: list[Any], call: Any
) -> None:
    session = Session(template, tools)
    session.messages[0]["content"] += "\nYour working directory: /w\n"
    assert session.user(request_text).turn()[2] == ([] if call is None else [call])


SHIP = tool("send_parcel", "address")
SEARCHES = [("query", "send parcel"), ("pattern", "send.*parcel|parcel.*send")]


@pytest.mark.parametrize(("argument", "written"), SEARCHES)
def test_tool_for_a_task_is_searched_and_called(
    template: ChatTemplate, argument: str, written: str
) -> None:
    session = Session(template, [*CLAUDE, tool("tool_search", argument)])
    session.user("Use a tool that sends the parcels.")
    assert session.turn()[2] == [("tool_search", {argument: written})]
    found = [json.dumps(one) for one in (tool("get_parcel", "id"), SHIP)]
    assert session.results("\n".join(found)).turn()[2] == [("send_parcel", {"address": ""})]
    _, text, calls = session.results("sent").turn()
    assert (text, calls) == ("Done; 2 tools answered, the last of them: sent", [])


def test_tool_for_a_task_may_be_listed_or_missing(template: ChatTemplate) -> None:
    task = "Use a tool that sends a parcel."
    assert Session(template, [*CLAUDE, SHIP]).user(task).turn()[2] == [
        ("send_parcel", {"address": ""})
    ]
    session = Session(template, [*CLAUDE, tool("tool_search", "query")]).user(task)
    session.turn()
    assert session.results("No results.").turn()[2] == []
