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

from turnwire_tools.script.agent_schema import Schema

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class PromptMessage(Struct, frozen=True):
    """One message as rendered, without its markers."""

    role: Role
    text: str


class OfferedTool(Struct, frozen=True):
    """A tool that the prompt offers: its name, the JSON schema of its arguments, and what it
    does."""

    name: str
    schema: Schema
    description: str = ""


class AgentPrompt(Struct, frozen=True):
    """The parts of a rendered prompt."""

    messages: list[PromptMessage]
    tools: list[OfferedTool]
    opening: str
    """What the template has already written of the assistant's turn: an opened or closed reasoning
    block, or the beginning of a forced call."""
    request: str
    """What the user asked for last, without what harnesses add to it; may be empty."""
    results: list[str]
    """What tools returned since then, in order."""
    answers: int
    """How many messages the assistant has written since then."""
    directory: str
    """The harness's working directory; empty if the prompt names none."""
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


def read_prompt(text: str) -> AgentPrompt:
    """The prompt with this text. Never raises: a prompt in no known form is one user message."""
    messages, opening = _messages(text)
    request, after = _request(messages)
    since = messages[after:]
    results = [without_additions(message.text) for message in since if message.role == "tool"]
    directory = _DIRECTORY.search(text)
    return AgentPrompt(
        messages=messages,
        tools=_tools(messages),
        opening=opening,
        request=request,
        results=results,
        answers=sum(message.role == "assistant" for message in since),
        directory="" if directory is None else directory[1],
        chat=_MARKED.search(text) is not None,
    )


def answered(text: str) -> bool:
    """Whether the end of a prompt holds a whole message of the assistant, after the beginning of
    `text`."""
    return any(message.role == "assistant" for message in _messages(text)[0])


def _messages(text: str) -> tuple[list[PromptMessage], str]:
    """The whole messages, and the text after the last assistant header if that message is still
    open."""
    headers = _headers(text)
    if not headers:
        return [PromptMessage("user", text)], ""

    messages = []
    before = text[: headers[0].start()].strip()
    if before:
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


def _headers(text: str) -> list[re.Match[str]]:
    """The headers of the messages, in the prompt's form."""
    of_each_form = [list(header.finditer(text)) for header in _HEADERS]
    present = [headers for headers in of_each_form if headers]
    # The prompt ends with a header: its form is the one with the last header of all.
    return max(present, key=lambda headers: headers[-1].start(), default=[])


def _split(role: Role, body: str) -> list[PromptMessage]:
    """Separates tool results from the user messages in which many templates put them."""
    if role != "user" or "<tool_response>" not in body:
        return [PromptMessage(role, body)]
    messages = [PromptMessage("tool", response[1]) for response in _RESPONSE.finditer(body)]
    rest = _RESPONSE.sub("", body).strip()
    if rest:
        messages.append(PromptMessage("user", rest))
    return messages


def without_additions(text: str) -> str:
    """A message of the user or a tool without what the harness, or the template for an image, has
    added."""
    return _ADDED.sub("", text).strip()


def output_of(result: str) -> str:
    """The output of a command, without the harness's report of its run."""
    return _OUTPUT.split(result, maxsplit=1)[-1]


def _request(messages: list[PromptMessage]) -> tuple[str, int]:
    """The last user message that asks for something, and the index after it."""
    for after in range(len(messages), 0, -1):
        message = messages[after - 1]
        if message.role != "user":
            continue
        asked = without_additions(message.text)
        if asked and not _CONTINUED.match(asked):
            return asked, after
    return "", len(messages)


def _tools(messages: list[PromptMessage]) -> list[OfferedTool]:
    tools: dict[str, OfferedTool] = {}
    for message in messages:
        if message.role == "system":
            for tool in (*json_tools(message.text), *_xml_tools(message.text)):
                tools.setdefault(tool.name, tool)
    return list(tools.values())


def json_tools(text: str) -> list[OfferedTool]:
    """The tools that JSON objects describe: functions, bare or as `{"type": "function",
    "function": …}`, alone or in a list."""
    tools = []
    at = 0
    brace = _OBJECT.search(text)
    while brace is not None:
        try:
            value, at = _decoder.raw_decode(text, brace.start())
        except ValueError:
            at = brace.end()
        else:
            tools += _json_tool(value)
        brace = _OBJECT.search(text, at)
    return tools


def _json_tool(value: dict[str, Any]) -> list[OfferedTool]:
    """The tool that a JSON object describes; none if it describes something else."""
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return []
    schema = function.get("parameters", function.get("input_schema"))
    if not isinstance(schema, dict):
        return []
    return [OfferedTool(function["name"], schema, str(function.get("description", "")))]


def _xml_tools(text: str) -> list[OfferedTool]:
    """The listing of Qwen3-Coder and its relatives."""
    tools = []
    for function in _XML_TOOL.finditer(text):
        body = function[2]
        properties = {
            parameter[1].strip(): _xml_schema(parameter[2])
            for parameter in _XML_PARAMETER.finditer(body)
        }
        schema = {"type": "object", "properties": properties, "required": _xml_required(body)}
        description = "".join(_inside("description", body)[:1])
        tools.append(OfferedTool(function[1].strip(), schema, description))
    return tools


def _xml_required(body: str) -> list[Any]:
    """The last list of required names."""
    lists = [names for names in map(_parsed, _inside("required", body)) if isinstance(names, list)]
    return lists[-1] if lists else []


def _xml_schema(text: str) -> Schema:
    schema: Schema = {}
    kinds = _inside("type", text)
    if kinds:
        schema["type"] = kinds[0]
    items = _inside("items", text)
    if items:
        schema["items"] = _parsed(items[0])
    return schema


def _inside(tag: str, text: str) -> list[str]:
    """The contents of the elements of this name."""
    return [content.strip() for content in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
