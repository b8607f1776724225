"""Converts the `tool_choice` of a request, which names tools as this API does."""

from collections.abc import Mapping
from typing import Any

from schemas.conversation import ToolChoice
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools, ToolName
from services.frontend.apis.responses.parse.tools.specs import WEB_SEARCH, WEB_SEARCH_TYPES
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.openai.wording import (
    invalid_value,
    missing_parameter,
    unsupported,
)

_MODES: dict[str, Any] = {"none": "none", "auto": "auto", "required": "any"}
_NAMED = ("function", "custom")
"""Types of tools that have a name of their own."""


def choice_of(decoded: DecodedRequest, tools: RequestTools) -> ToolChoice:
    """The request's `tool_choice`. Raises Invalid where it cannot be met."""
    body = decoded.body
    parallel = body.parallel_tool_calls is not False
    if not is_set(body.tool_choice):
        return ToolChoice(parallel=parallel)
    chosen = convert(str | wire.ResponsesToolChoice, body.tool_choice, "tool_choice")
    if isinstance(chosen, str):
        return _mode(chosen, tools, parallel)
    if chosen.type == "allowed_tools":
        return _allowed(chosen, tools, parallel)
    return _named_tool(chosen, tools, parallel)


def _mode(chosen: str, tools: RequestTools, parallel: bool) -> ToolChoice:
    if chosen not in _MODES:
        raise invalid_value(chosen, "tool_choice", tuple(_MODES))
    if chosen == "required" and not tools.specs:
        raise _nothing_to_call(tools)
    return ToolChoice(_MODES[chosen], parallel=parallel)


def _named_tool(
    chosen: wire.ResponsesToolChoice, tools: RequestTools, parallel: bool
) -> ToolChoice:
    name = ToolIndex(tools.names).find(chosen)
    if name is not None and name.alias is not None:
        return ToolChoice("tool", name=name.alias, parallel=parallel)
    if name is not None:
        return ToolChoice("tool", name=name.name, namespace=name.namespace, parallel=parallel)
    if chosen.type in _NAMED or chosen.type in tools.served:
        raise _not_offered(chosen.name or chosen.type, "tool_choice")
    raise unsupported("tool_choice", f"asks for '{chosen.type}', which this server does not run")


def _allowed(chosen: wire.ResponsesToolChoice, tools: RequestTools, parallel: bool) -> ToolChoice:
    for member in ("mode", "tools"):
        if getattr(chosen, member) is None:
            raise missing_parameter(f"tool_choice.{member}")
    names = _allowed_names(chosen, ToolIndex(tools.names))
    required = chosen.mode == "required"
    if names:
        return ToolChoice("any" if required else "auto", parallel=parallel, allowed=names)
    if required:
        raise _nothing_to_call(tools)
    return ToolChoice("none", parallel=parallel)


def _allowed_names(chosen: wire.ResponsesToolChoice, index: "ToolIndex") -> list[str]:
    names: dict[str, None] = {}
    read: set[str] = set()  # a list may name one namespace thousands of times
    for number, raw in enumerate(chosen.tools or []):
        field_path = f"tool_choice.tools[{number}]"
        tool = convert(wire.AllowedTool, raw, field_path)
        if tool.type == "namespace":
            if not tool.name:
                raise missing_parameter(f"{field_path}.name")
            if tool.name not in read:
                read.add(tool.name)
                names |= dict.fromkeys(index.in_namespace(tool.name))
            continue
        name = index.find(tool)
        if name is not None:
            names[name.rendered] = None
        elif tool.type in _NAMED:
            raise _not_offered(tool.name, field_path)
    return list(names)


class ToolIndex:
    """Finds a request's tools by the names in a choice."""

    def __init__(self, names: Mapping[str, ToolName]) -> None:
        """`names`: by rendered names."""
        self._names = names
        self._by_kind: dict[str, ToolName] = {}
        """The first tool of each kind without a name of its own."""
        self._by_name: dict[tuple[str, str | None], ToolName] = {}
        """The tool of each name and namespace."""
        self._by_bare_name: dict[str, ToolName] = {}
        """The first tool of each name, in any namespace."""
        for name in names.values():
            if name.kind in _NAMED:
                self._by_name.setdefault((name.name, name.namespace), name)
                self._by_bare_name.setdefault(name.name, name)
            else:
                self._by_kind.setdefault(name.kind, name)

    def find(self, chosen: wire.ResponsesToolChoice | wire.AllowedTool) -> ToolName | None:
        """The tool that a choice names. A tool in a namespace may also be named `namespace__name`,
        or by its bare name if no tool outside has that name. Raises Invalid."""
        if chosen.type in WEB_SEARCH_TYPES:
            return self._by_kind.get(WEB_SEARCH)
        if chosen.type not in _NAMED:
            return self._by_kind.get(chosen.type)
        if not chosen.name:
            raise missing_parameter("tool_choice.name")
        exact = self._by_name.get((chosen.name, chosen.namespace))
        if exact is not None or chosen.namespace is not None:
            return exact
        return self._names.get(chosen.name) or self._by_bare_name.get(chosen.name)

    def in_namespace(self, namespace: str | None) -> list[str]:
        """The rendered names of the tools in a namespace."""
        return [name.rendered for name in self._names.values() if name.namespace == namespace]


def _not_offered(name: str | None, field_path: str) -> Invalid:
    return Invalid(
        f"Tool choice '{name}' not found in 'tools' parameter.",
        param=field_path,
        code="invalid_value",
    )


def _nothing_to_call(tools: RequestTools) -> Invalid:
    if tools.dropped:
        return unsupported(
            "tool_choice",
            f"asks for one of {', '.join(tools.dropped)}, which this server does not run",
        )
    return Invalid(
        "Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice"
    )
