"""Parses a rendered prompt: its messages, the tools that it offers, and the user's last request.
Pure.

The scripted agent gets what a model gets: a chat template's output and nothing else. Families
differ in how they mark a message and list a tool; only as much is distinguished here as the agent
needs.
"""

import json
import re
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class PromptMessage(Struct, frozen=True):
    """One message as rendered, without its markers."""

    role: Role
    text: str


class Tool(Struct, frozen=True):
    """A tool that the prompt offers: its name and the JSON schema of its arguments."""

    name: str
    schema: dict[str, Any]


class Prompt(Struct, frozen=True):
    """The parts of a rendered prompt."""

    messages: list[PromptMessage]
    tools: list[Tool]
    opening: str
    """What the template has already written of the assistant's turn: an opened or closed reasoning
    block, or the beginning of a forced call."""
    request: str
    """What the user asked for last, without what harnesses add to it; may be empty."""
    results: list[str]
    """What tools returned since then, in order."""
    answers: int
    """How many messages the assistant has written since then."""
    directory: str | None
    """The harness's working directory, if the prompt names it."""
    chat: bool = True
    """Written by a chat template; else it is one text to be continued."""


_HEADERS = (
    re.compile(r"<\|im_start\|>(\w+)\n"),
    re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n*"),
    re.compile(r"<start_of_turn>(\w+)\n"),
    re.compile(r"<\|(system|user|assistant|observation|tool)\|>\n?"),
    re.compile(r"<｜(System|User|Assistant)｜>"),
    re.compile(r"\[(INST|/INST)\] ?"),
)
_MARKED = re.compile(
    r"<[|｜]|[|｜]>|<\w+_of_turn>|<s>|<bos>|\[/?INST\]|^(?:system|user|assistant)\n", re.MULTILINE
)
"""Control tokens of any chat template, also of those with messages that are not separated here."""
_ENDS = re.compile(
    r"\s*(?:<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<\|end\|>|</s>|<｜end▁of▁sentence｜>)\s*$"
)
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "inst": "user",
    "assistant": "assistant",
    "model": "assistant",
    "/inst": "assistant",
    "tool": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function": "tool",
}
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_ADDED = re.compile(
    r"<(system-reminder|environment_context|user_instructions|skills_instructions|turn_aborted|local-command-\w+)\b[^>]*>"
    r".*?</\1>"
    r"|<(permissions instructions)>.*?</\2>"
    r"|# AGENTS\.md instructions\b.*?</INSTRUCTIONS>"
    r"|<\|(?:vision|image)_(?:start|end)\|>"
    r"|<<<BEGIN_(\w+)>>>.*?<<<END_\3>>>"
    r"|\[(?:Request interrupted by user|Your previous response had no visible output|earlier "
    r"conversation truncated)"
    r"[^\]\n]*\]",
    re.DOTALL,
)
_CONTINUED = re.compile(
    r"(?:your response above was cut off|output token limit hit"
    r"|\[ERROR\] You did not use a tool"
    r"|(?:please )?continue\b[^`]{0,60}$)",
    re.IGNORECASE,
)
_OUTPUT = re.compile(r"^Output:(?:\n|$)", re.MULTILINE)
"""Codex puts the exit code and timing of a command before this line."""
_DIRECTORY = re.compile(
    r"(?:working directory|working in the directory|<cwd>|\bcwd)\W{0,4}(?:is )?(/[^\s<>\"'`,;]*)",
    re.IGNORECASE,
)
_XML_TOOL = re.compile(r"<function>\s*<name>(.*?)</name>(.*?)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter>\s*<name>(.*?)</name>(.*?)</parameter>", re.DOTALL)
_OBJECT = re.compile(r'\{\s*"')
_decoder = json.JSONDecoder()


def read_prompt(text: str) -> Prompt:
    """The prompt with this text. Never raises: a prompt in no known form is one user message."""
    messages, opening = _messages(text)
    request, since = _request(messages)
    return Prompt(
        messages=messages,
        tools=_tools(messages),
        opening=opening,
        request=request,
        results=[
            without_additions(message.text)
            for message in messages[since:]
            if message.role == "tool"
        ],
        answers=sum(message.role == "assistant" for message in messages[since:]),
        directory=found[1] if (found := _DIRECTORY.search(text)) else None,
        chat=_MARKED.search(text) is not None,
    )


def answered(text: str) -> bool:
    """Whether the end of a prompt holds a whole message of the assistant, after the beginning of
    `text`."""
    return any(message.role == "assistant" for message in _messages(text)[0])


def _messages(text: str) -> tuple[list[PromptMessage], str]:
    """The whole messages, and the text after the last assistant header if that message is still
    open."""
    found = [list(header.finditer(text)) for header in _HEADERS]
    # The prompt ends with a header: its form is the one with the last header of all.
    headers = max(found, key=lambda hits: hits[-1].start() if hits else -1)
    if not headers:
        return [PromptMessage("user", text)], ""
    messages = []
    if before := text[: headers[0].start()].strip():
        messages.append(PromptMessage("system", before))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    opening = ""
    for header, end in zip(headers, ends, strict=True):
        role = _ROLES.get(header[1].lower(), "user")
        body = text[header.end() : end]
        if role == "assistant" and end == len(text) and not _ENDS.search(body):
            opening = body
        else:
            messages += _split(role, _ENDS.sub("", body))
    return messages, opening


def _split(role: Role, body: str) -> list[PromptMessage]:
    """Separates tool results from the user messages in which many templates put them."""
    if role != "user" or "<tool_response>" not in body:
        return [PromptMessage(role, body)]
    results = [PromptMessage("tool", found[1]) for found in _RESPONSE.finditer(body)]
    rest = _RESPONSE.sub("", body).strip()
    return [*results, PromptMessage("user", rest)] if rest else list(results)


def without_additions(text: str) -> str:
    """A message of the user or a tool without what the harness, or the template for an image, has
    added."""
    return _ADDED.sub("", text).strip()


def output_of(result: str) -> str:
    """The output of a command, without the harness's report of its run."""
    return _OUTPUT.split(result, maxsplit=1)[-1]


def _request(messages: list[PromptMessage]) -> tuple[str, int]:
    """The last user message that asks for something, and the index after it."""
    for index, message in reversed([*enumerate(messages, 1)]):
        if (
            message.role == "user"
            and (asked := without_additions(message.text))
            and not _CONTINUED.match(asked)
        ):
            return asked, index
    return "", len(messages)


def _tools(messages: list[PromptMessage]) -> list[Tool]:
    tools: dict[str, Tool] = {}
    for message in messages:
        if message.role == "system":
            for tool in (*_json_tools(message.text), *_xml_tools(message.text)):
                tools.setdefault(tool.name, tool)
    return list(tools.values())


def _json_tools(text: str) -> list[Tool]:
    """JSON objects that describe a function, bare or as `{"type": "function", "function": …}`,
    alone or in a list."""
    tools = []
    at = 0
    while (brace := _OBJECT.search(text, at)) is not None:
        try:
            value, at = _decoder.raw_decode(text, brace.start())
        except ValueError:
            at = brace.end()
            continue
        if isinstance(function := value.get("function", value), dict) and isinstance(
            function.get("name"), str
        ):
            schema = function.get("parameters", function.get("input_schema"))
            if isinstance(schema, dict):
                tools.append(Tool(function["name"], schema))
    return tools


def _xml_tools(text: str) -> list[Tool]:
    """The listing of Qwen3-Coder and its relatives."""
    tools = []
    for found in _XML_TOOL.finditer(text):
        name, body = found[1].strip(), found[2]
        properties = {
            parameter[1].strip(): _xml_schema(parameter[2])
            for parameter in _XML_PARAMETER.finditer(body)
        }
        required = [
            names for one in _inside("required", body) if isinstance(names := _parsed(one), list)
        ]
        tools.append(
            Tool(
                name,
                {"type": "object", "properties": properties, "required": (required or [[]])[-1]},
            )
        )
    return tools


def _xml_schema(text: str) -> dict[str, Any]:
    kinds, items = _inside("type", text), _inside("items", text)
    schema: dict[str, Any] = {"type": kinds[0]} if kinds else {}
    return schema | {"items": _parsed(items[0])} if items else schema


def _inside(tag: str, text: str) -> list[str]:
    """The contents of the elements of this name."""
    return [found.strip() for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
