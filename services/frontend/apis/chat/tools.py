"""Converts the tools and the `tool_choice` of a Chat request to those of the conversation."""

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Grammar, HostedTool, Text, ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.chat import wire
from services.frontend.apis.shared.decode import ToolList
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.openai.wording import invalid_value, missing_parameter
from services.frontend.apis.shared.tools import checked_grammar
from services.frontend.content.hosted_tools import hosted_spec, missing_tools


class _Location(Struct):
    approximate: dict[str, Any] = {}


class _SearchOptions(Struct):
    user_location: _Location = msgspec.field(default_factory=_Location)


_WEB_SEARCH: Final = "web_search"
_options = msgspec.json.Decoder(_SearchOptions)
_tools = msgspec.json.Decoder(list[wire.ChatTool] | None)
_MODES: dict[str, Literal["none", "auto", "any"]] = {
    "none": "none",
    "auto": "auto",
    "required": "any",
}


class OfferedTools(Struct, frozen=True):
    """The tools that the model sees, and those that were left out."""

    specs: list[ToolSpec]
    missing: list[Text] = []
    """The instruction that names the tools that were left out to the model."""
    dropped: list[str] = []
    """The fields that asked for them."""


def read_tools(data: bytes) -> ToolList:
    """Decodes the tools of a request body. Raises msgspec.ValidationError and Invalid."""
    tools = _tools.decode(data)
    grammars: list[Grammar] = []
    specs = [_tool(tool, f"tools[{index}]", grammars) for index, tool in enumerate(tools or [])]
    return ToolList(tools, _first_of_each(specs))


def offered(body: wire.ChatBody, tools: ToolList, served: frozenset[str]) -> OfferedTools:
    """The tools of a request. Raises Invalid.

    `served`: the kinds of hosted tools that this server runs.
    """
    specs = _specs(body, tools)
    if not is_set(body.web_search_options):
        return OfferedTools(specs)
    is_named = any(tool.name == _WEB_SEARCH for tool in specs)
    if is_named or _WEB_SEARCH not in served:
        return OfferedTools(specs, missing_tools([_WEB_SEARCH]), ["web_search_options"])
    return OfferedTools([*specs, _web_search(body.web_search_options)])


def _specs(body: wire.ChatBody, tools: ToolList) -> list[ToolSpec]:
    """The tools, then the legacy functions; the first of each name."""
    if not body.functions:
        return tools.specs
    return _first_of_each([*tools.specs, *(_function(function) for function in body.functions)])


def _web_search(options: Raw) -> ToolSpec:
    """The tool of `web_search_options`."""
    try:
        location = _options.decode(options).user_location.approximate
    except (msgspec.ValidationError, RecursionError):
        location = {}
    if location:
        location = {"type": "approximate", **location}
    return hosted_spec(HostedTool(_WEB_SEARCH, location=location, hidden=True))


def choice(body: wire.ChatBody, tools: Sequence[ToolSpec]) -> ToolChoice:
    """The request's `tool_choice`. Raises Invalid if it cannot be met."""
    choice = body.tool_choice
    parallel = body.parallel_tool_calls is not False
    if legacy(body) or (choice is None and body.function_call is not None):
        return _legacy_choice(body.function_call, tools)
    if choice is None:
        return ToolChoice(parallel=parallel)
    if isinstance(choice, str):
        if choice not in _MODES:
            raise invalid_value(choice, "tool_choice", list(_MODES))
        if choice == "required":
            _needs_tools(tools, "tool_choice")
        return ToolChoice(_MODES[choice], parallel=parallel)
    if choice.type == "allowed_tools":
        return _allowed_choice(choice, tools, parallel)
    offered = [tool.name for tool in tools]
    name = _known_tool(_name(choice, "tool_choice"), offered, "tool_choice")
    return ToolChoice("tool", name, parallel)


def legacy(body: wire.ChatBody) -> bool:
    """Whether the answer's call is in `function_call`: the request has `functions` and no
    `tools`."""
    return bool(body.functions) and not body.tools


def _first_of_each(specs: list[ToolSpec]) -> list[ToolSpec]:
    return list({tool.name: tool for tool in reversed(specs)}.values())[::-1]


def _tool(tool: wire.ChatTool, field_path: str, grammars: list[Grammar]) -> ToolSpec:
    """`grammars`: those of the tools before it, to which its own is added."""
    if tool.type == "function":
        if tool.function is None:
            raise missing_parameter(f"{field_path}.function")
        return _function(tool.function)
    custom = tool.custom
    if custom is None:
        raise missing_parameter(f"{field_path}.custom")
    grammar = None
    if custom.format is not None and custom.format.type == "grammar":
        if custom.format.grammar is None:
            raise missing_parameter(f"{field_path}.custom.format.grammar")
        grammar_spec = custom.format.grammar
        definition_path = f"{field_path}.custom.format.grammar.definition"
        grammar = checked_grammar(
            grammar_spec.syntax, grammar_spec.definition, definition_path, len(grammars)
        )
        grammars.append(grammar)
    return ToolSpec(custom.name, custom.description or "", kind="custom", grammar=grammar)


def _function(function: wire.Function) -> ToolSpec:
    return ToolSpec(
        function.name, function.description or "", function.parameters or {}, strict=function.strict
    )


def _allowed_choice(
    choice: wire.ChatToolChoice, tools: Sequence[ToolSpec], parallel: bool
) -> ToolChoice:
    allowed = choice.allowed_tools
    if allowed is None:
        raise missing_parameter("tool_choice.allowed_tools")
    offered = {tool.name for tool in tools}
    names: list[str] = []
    for index, tool in enumerate(allowed.tools):
        field_path = f"tool_choice.allowed_tools.tools[{index}]"
        names.append(_known_tool(_name(tool, field_path), offered, field_path))
    if not names:
        return ToolChoice("none", parallel=parallel)
    if allowed.mode == "required":
        return ToolChoice("any", parallel=parallel, allowed=names)
    return ToolChoice(parallel=parallel, allowed=names)


def _legacy_choice(choice: str | wire.Named | None, tools: Sequence[ToolSpec]) -> ToolChoice:
    if choice is None:
        return ToolChoice(parallel=False)
    if isinstance(choice, str):
        if choice not in ("none", "auto"):
            raise invalid_value(choice, "function_call", ("none", "auto"))
        return ToolChoice("none" if choice == "none" else "auto", parallel=False)
    offered = [tool.name for tool in tools]
    return ToolChoice("tool", _known_tool(choice.name, offered, "function_call"), parallel=False)


def _name(choice: wire.ChatToolChoice | wire.ChosenTool, field_path: str) -> str:
    tool = choice.custom if choice.type == "custom" else choice.function
    if tool is None:
        raise missing_parameter(f"{field_path}.{choice.type}")
    return tool.name


def _known_tool(name: str, offered: Collection[str], field_path: str) -> str:
    _needs_tools(offered, field_path)
    if name not in offered:
        raise Invalid(
            f"Tool '{name}' in '{field_path}' not found in 'tools'.",
            param=field_path,
            code="invalid_value",
        )
    return name


def _needs_tools(tools: Collection[object], field_path: str) -> None:
    if not tools:
        raise Invalid(
            f"'{field_path}' is only allowed when 'tools' are specified.", param=field_path
        )
