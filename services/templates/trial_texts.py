"""Conversations with which a template is tried in both of its engines: texts, numbers and shapes in
which a Jinja in another language may differ."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Reasoning,
    Result,
    Text,
    ToolSpec,
)
from schemas.errors import Invalid
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.thinking import EFFORT_VARIABLES, KEEP_HISTORY, SWITCHES
from services.templates.tools import tool_definition
from services.templates.traits import TemplateTraits

_TEXTS = (
    "plain",
    "  blanks around \n\n",
    "<b>&amp; 'single' \"double\" \\ back</b>\tand\r\nlines",
    "\u00fc\u00df \u4f60\u597d \U0001f600 e\u0301 \u2028 \u00a0x",
    "{{ not }} {% a %} {# template #} <|not_a_token|>",
    "<think>thought</think> </think> <tool_call>",
    "0",
    "",
)
_VALUES = (
    '{"path": "/a b", "n": 7, "f": 1.5, "big": 12345678901234567890, "small": 0.0001}',
    '{"t": true, "no": null, "list": [1, "two", {"three": [3.25, -0.5]}], "empty": {}, "none": []}',
    '{"text": "<b>&\\"\'\\n\\u00fc\\ud83d\\ude00", "key with blank": "", "1": 1234567890.125}',
    "{}",
)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A <path> & \u201cmore\u201d", "default": None},
        "n": {"type": ["integer", "null"], "enum": [1, 2.5, None], "minimum": -1},
        "nested": {"type": "array", "items": {"type": "object", "properties": {}}},
    },
    "required": ["path"],
    "additionalProperties": False,
}
_TOOLS = (
    ToolSpec("look", 'Looks "at" <it>', _SCHEMA),
    ToolSpec("no_parameters", "", {"type": "object", "properties": {}}),
)


def render_trials(template: ChatTemplate, traits: TemplateTraits) -> None:
    """Renders conversations of every sort, with and without tools, and with each variable of
    thinking. A refusal is a result, too."""
    tools = [tool_definition(tool) for tool in _TOOLS]
    conversations = [
        adapt(Conversation("trial", messages), traits, template).messages
        for messages in _conversations()
    ]
    for messages, variables in product(conversations, _variables(template)):
        for listed, generation in (([], True), (tools, True), (tools, False)):
            try:
                template.render(messages, tools=listed, variables=variables, generation=generation)
            except (Invalid, RecursionError):
                pass


def _conversations() -> Iterator[list[Message]]:
    system = Message("system", [Text("You are an agent.\n")])
    for text in _TEXTS:
        yield [system, Message("user", [Text(text)])]
        yield [Message("user", [Text("Hi.")]), Message("assistant", [Text(text)])]
    for arguments in _VALUES:
        yield [Message("user", [Text("Hi.")]), *_round("1", arguments, "thought", "said")]
    yield [Message("assistant", [Text("first")]), Message("user", [Text("Hi.")])]
    yield [Message("user", [Text("a")]), Message("user", [Text("b")]), system]
    long = [system]
    for number, text in enumerate(_TEXTS * 2):
        arguments = _VALUES[number % len(_VALUES)]
        long += [Message("user", [Text(text or "?")]), *_round(str(number), arguments, text, text)]
    yield [*long, Message("user", [Text("Go on.")])]


def _round(id: str, arguments: str, thought: str, said: str) -> list[Message]:
    """A turn of the model with two calls, their results, and its answer."""
    calls = [f"call_{id:0>5}{letter}" for letter in "ab"]
    return [
        Message(
            "assistant",
            [
                Reasoning(thought),
                Text(said),
                Call(calls[0], "look", arguments),
                Call(calls[1], "no_parameters", "{}"),
            ],
        ),
        Message("tool", [Result(call, [Text(said)]) for call in calls]),
        Message("assistant", [Reasoning(thought), Text(f"{said}.")]),
    ]


def _variables(template: ChatTemplate) -> Iterator[Mapping[str, Any]]:
    """The variables that requests may set, for those that the template reads."""
    yield {}
    for name in template.variables.intersection(SWITCHES):
        yield {name: True}
        yield {name: False}
    for name in template.variables.intersection(EFFORT_VARIABLES):
        yield {name: "high"}
    for name in template.variables.intersection(KEEP_HISTORY):
        yield {name: KEEP_HISTORY[name]}
