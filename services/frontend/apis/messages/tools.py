"""Converts the tools of a Messages request to those of the conversation, and applies the changes in
its messages.

Custom tools pass through. Requests send bash, text editor and memory without a schema because
Anthropic's models know it; they get one here, and the client runs them. Of the tools that
Anthropic's servers run, searches of tools become functions, and those that the operator has a
provider for (`hosted.py`). The others are left out, and named in the notes and to the model: Claude
Code's WebSearch sends no other tool and accepts a plain answer, while a 400 fails its call.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from schemas.conversation import Text, ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.content import raw_text
from services.frontend.apis.messages.hosted import tool_spec
from services.frontend.apis.shared.decode import ToolList
from services.frontend.apis.shared.tools import BuiltInTool
from services.frontend.content.hosted_tools import missing_tools

_tools = msgspec.json.Decoder(list[wire.MessagesTool] | None)
CUSTOM = "custom"
HOSTED = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "advisor_",
    "mcp_toolset",
)
_SEARCH = "tool_search_tool_"
_NAME = re.compile("[a-zA-Z0-9_-]{1,128}")
_NEEDLESS = ("tool_search_tool", "mcp_toolset")
"""Tools that change nothing: all tools are listed without a known search, and MCP servers are
refused."""
_STRING = {"type": "string"}
_EDITS: dict[str, Any] = {
    "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
    "path": {**_STRING, "description": "Absolute path of the file or directory."},
    "file_text": {**_STRING, "description": "For create: the content of the file."},
    "old_str": {
        **_STRING,
        "description": "For str_replace: the text to replace; it must occur exactly once.",
    },
    "new_str": {**_STRING, "description": "For str_replace: the text to put in its place."},
    "insert_line": {
        "type": "integer",
        "description": "For insert: the line after which to insert; 0: at the top.",
    },
    "insert_text": {**_STRING, "description": "For insert: the text to insert."},
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "First and last line to show; -1 as the last: to the end.",
    },
}
_EDITOR = BuiltInTool("Shows, creates and edits files.", _EDITS, ("command",))
_BUILT_IN = {
    "bash_": (
        "bash",
        BuiltInTool(
            "Runs commands in a bash shell that persists between calls.",
            {
                "command": {**_STRING, "description": "The command to run."},
                "restart": {"type": "boolean", "description": "True: start the shell anew."},
            },
        ),
    ),
    "text_editor_20250124": ("str_replace_editor", _EDITOR),
    "text_editor_": ("str_replace_based_edit_tool", _EDITOR),
    "memory_": (
        "memory",
        BuiltInTool(
            "Keeps notes in files under /memories between conversations.",
            {
                **_EDITS,
                "command": {
                    "type": "string",
                    "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                },
                "old_path": {**_STRING, "description": "For rename."},
                "new_path": _STRING,
            },
            ("command",),
        ),
    ),
}
"""Name and form of the tools that Anthropic's models know, by the beginning of their type."""
ToolChange: TypeAlias = wire.ToolAdditionBlock | wire.ToolRemovalBlock


class MessagesTools(ToolList, frozen=True):
    """The tools of a request body, and those that were left out."""

    dropped: list[str]
    """The types of the tools that this server cannot run."""
    missing: list[Text]
    """The instruction that names these tools to the model."""


def read_tools(data: bytes, served: frozenset[str] = frozenset()) -> MessagesTools:
    """Decodes the tools of a request body. Raises msgspec.ValidationError and Invalid.

    `served`: the kinds of hosted tools that this server runs.
    """
    tools = _tools.decode(data)
    visible, dropped = specs(tools or [], served)
    kinds = map(_hosted_kind, dropped)
    needed = [kind for kind in kinds if kind not in _NEEDLESS]
    return MessagesTools(tools, visible, dropped, missing_tools(needed))


def _hosted_kind(type_name: str) -> str:
    """The kind of a hosted tool, by its type, which has a date."""
    return next(prefix.rstrip("_") for prefix in HOSTED if type_name.startswith(prefix))


def specs(
    tools: list[wire.MessagesTool], served: frozenset[str] = frozenset()
) -> tuple[list[ToolSpec], list[str]]:
    """The tools that the model sees, and the types of the others.

    Raises Invalid for a type that neither the client nor this server can run, and for two tools
    with one name.
    """
    visible: list[ToolSpec] = []
    dropped: list[str] = []
    for index, tool in enumerate(tools):
        if tool.type is not None and tool.type.startswith(HOSTED):
            hosted = tool_spec(tool, served, f"tools.{index}")
            if hosted is not None:
                visible.append(hosted)
            else:
                dropped.append(tool.type)
        else:
            visible.append(spec(tool, f"tools.{index}"))
    names = [tool.name for tool in visible]
    if len(set(names)) < len(names):
        raise Invalid("tools: Tool names must be unique.", code="tool_name_conflict")
    is_searched = any(kind.startswith(_SEARCH) for kind in dropped)
    if is_searched or all(tool.deferred for tool in visible):
        # Without a search nothing could load a deferred tool, so all tools are listed from the
        # start.
        visible = [replace(tool, deferred=False) for tool in visible]
    return visible, dropped


def spec(tool: wire.MessagesTool, field_path: str) -> ToolSpec:
    """One tool. Raises Invalid."""
    kind = tool.type or CUSTOM
    if kind == CUSTOM:
        defined = _custom(tool, f"{field_path}.custom", field_path)
    else:
        defined = _built_in(kind, field_path)
    return replace(
        defined,
        name=tool.name or defined.name,
        deferred=bool(tool.defer_loading),
        strict=tool.strict,
    )


def _custom(tool: wire.MessagesTool, shown_path: str, field_path: str) -> ToolSpec:
    """A tool that the request defines. `shown_path`: as errors name it."""
    if not tool.name:
        raise Invalid(f"{shown_path}.name: Field required", param=f"{field_path}.name")
    if not _NAME.fullmatch(tool.name):
        pattern = f"String should match pattern '^{_NAME.pattern}$'"
        raise Invalid(f"{shown_path}.name: {pattern}", param=f"{field_path}.name")
    if tool.input_schema is None:
        raise Invalid(
            f"{shown_path}.input_schema: Field required", param=f"{field_path}.input_schema"
        )
    return ToolSpec(tool.name, _description(tool), tool.input_schema)


def choice(body: wire.MessagesBody, tools: list[ToolSpec]) -> ToolChoice:
    """The request's `tool_choice`. Raises Invalid if it cannot be met."""
    choice = body.tool_choice
    if choice is None:
        return ToolChoice()
    _check_choice(choice, body, tools)
    parallel = not choice.disable_parallel_tool_use
    hosted = [tool for tool in body.tools or [] if (tool.type or CUSTOM).startswith(HOSTED)]
    if not tools:
        if choice.type in ("any", "tool"):
            raise _not_run(", ".join(tool.name or tool.type or "" for tool in hosted))
        return ToolChoice(parallel=parallel)
    if choice.type != "tool":
        return ToolChoice(choice.type, parallel=parallel)
    _check_named_tool(choice.name or "", tools, hosted)
    return ToolChoice("tool", name=choice.name, parallel=parallel)


def _check_named_tool(name: str, tools: list[ToolSpec], hosted: list[wire.MessagesTool]) -> None:
    """Raises Invalid if the model cannot call a tool of this name. `hosted`: those that this
    server may lack."""
    if any(tool.name == name for tool in tools):
        return
    if any(tool.name == name for tool in hosted):
        raise _not_run(name)
    raise Invalid(
        f"tool_choice.tool.name: Tool '{name}' not found in provided tools", param="tool_choice"
    )


def _check_choice(
    choice: wire.MessagesToolChoice, body: wire.MessagesBody, tools: list[ToolSpec]
) -> None:
    """Raises Invalid for a choice that no request may have, or not with this one's thinking."""
    if not body.tools and not tools:
        raise Invalid(
            "tool_choice: may only be specified while providing tools.", param="tool_choice"
        )
    if choice.type == "tool" and not choice.name:
        raise Invalid("tool_choice.tool.name: Field required", param="tool_choice.name")
    forced = choice.type in ("any", "tool")
    if forced and body.thinking is not None and body.thinking.type == "enabled":
        raise Invalid(
            "Thinking may not be enabled when tool_choice forces tool use.", param="tool_choice"
        )


def _not_run(names: str) -> Invalid:
    return Invalid(
        f"tool_choice: this server does not run '{names}', which the choice requires",
        param="tool_choice",
    )


def _description(tool: wire.MessagesTool) -> str:
    text = tool.description or ""
    if not tool.input_examples:
        return text
    examples = "\n".join(raw_text(example) for example in tool.input_examples)
    return f"{text}\n\nExamples of input:\n{examples}".lstrip()


def _built_in(kind: str, field_path: str) -> ToolSpec:
    """A tool that Anthropic's models know, with the schema that it has."""
    for prefix, (name, tool) in _BUILT_IN.items():
        if kind.startswith(prefix):
            return ToolSpec(name, tool.description, tool.schema)
    raise Invalid(
        f"{field_path}: Input tag '{kind}' found using 'type' does not match any of the expected "
        "tags: 'custom', 'bash_20250124', 'memory_20250818', 'text_editor_20250124', "
        "'text_editor_20250429', 'text_editor_20250728'",
        param=f"{field_path}.type",
    )


class ToolSet:
    """The tools of one request, as its messages add and withdraw them.

    A change is described where it happens. The list in the prompt's head stays the same, so the
    cached prompt stays valid.
    """

    def __init__(self, specs: list[ToolSpec]) -> None:
        self._declared = {spec.name: spec for spec in specs}
        self._reset()

    def _reset(self) -> None:
        self._withdrawn: set[str] = set()
        self._by_name = self._declared.copy()
        self._listed = sum(not spec.deferred for spec in self._declared.values())
        """The number of tools in the prompt's head."""
        self._changes: dict[str, ToolChange] = {}
        """The latest change of each tool, in order."""
        self._definitions: dict[str, ToolChange] = {}

    @property
    def specs(self) -> list[ToolSpec]:
        """All tools that the prompt describes, in the list in its head or later."""
        return [*self._by_name.values()]

    def runs(self, name: str) -> bool:
        """Whether the tool is one that this server runs; the calls of others are text."""
        spec = self._by_name.get(name)
        return spec is not None and spec.hosted is not None

    @property
    def offered(self) -> list[ToolSpec]:
        """The tools that may be called at the end of the conversation."""
        return [spec for spec in self.specs if spec.name not in self._withdrawn]

    @property
    def changes(self) -> list[ToolChange]:
        """The changes that take the request's tools to those at the end of the conversation."""
        return [
            change
            for name, change in self._changes.items()
            if name in self._declared or isinstance(change, wire.ToolAdditionBlock)
        ]

    def change(self, block: ToolChange, field_path: str) -> list[Text]:
        """Applies a change, and returns the text that describes it. Raises Invalid for an invalid
        definition.

        The text is empty for an unknown tool, which may be one of an MCP server, or of an earlier
        request.
        """
        spec = self._note_change(block, field_path)
        if spec is None:
            return []
        if isinstance(block, wire.ToolRemovalBlock):
            self._withdrawn.add(spec.name)
            return [Text(f"From here on the tool `{spec.name}` is not available any more.")]
        if not self._listed:
            # Without a list in the prompt's head the model has no instructions how to call tools.
            self._put(spec, deferred=False)
            return []
        available = not spec.deferred and spec.name not in self._withdrawn
        self._withdrawn.discard(spec.name)
        if available:
            return []
        return [Text(f"From here on this tool is available, too:\n{_definition(spec)}")]

    def compact(self, changes: Sequence[ToolChange], field_path: str) -> None:
        """Makes the list again from the request's tools and the changes in a compaction, which
        replaces all text before it. Raises Invalid."""
        self._reset()
        for index, block in enumerate(changes):
            spec = self._note_change(block, f"{field_path}.tool_changes.{index}")
            if spec is not None and isinstance(block, wire.ToolAdditionBlock):
                self._put(spec, deferred=False)
            elif spec is not None:
                del self._by_name[spec.name]
                self._listed -= not spec.deferred

    def _note_change(self, block: ToolChange, field_path: str) -> ToolSpec | None:
        """Notes a change, and returns its tool; None for an unknown one."""
        tool = self._find_tool(block, field_path)
        if tool is None:
            return None
        if isinstance(block, wire.ToolAdditionBlock):
            block = self._definitions.get(tool.name, block)
        self._changes.pop(tool.name, None)  # the order is that of the latest changes
        self._changes[tool.name] = block
        return tool

    def _find_tool(self, block: ToolChange, field_path: str) -> ToolSpec | None:
        """The tool of a change, which may define it, or add one of the request that a compaction
        withdrew; None for an unknown one, and for one of a server."""
        match block.tool:
            case wire.ToolDefinition(definition=definition):
                if (definition.type or CUSTOM).startswith(HOSTED):
                    return None
                tool = self._put(spec(definition, f"{field_path}.tool.definition"), deferred=True)
                self._definitions[tool.name] = block
                return tool
            case wire.NamedTool(name=name):
                if name not in self._by_name and isinstance(block, wire.ToolAdditionBlock):
                    declared = self._declared.get(name)
                    return None if declared is None else self._put(declared, deferred=True)
                return self._by_name.get(name)
        return None

    def _put(self, spec: ToolSpec, *, deferred: bool) -> ToolSpec:
        tool = replace(spec, deferred=deferred)
        former = self._by_name.get(tool.name)
        self._by_name[tool.name] = tool
        if former is not None:
            self._listed -= not former.deferred
        self._listed += not deferred
        return tool


def _definition(spec: ToolSpec) -> str:
    """The tool in the form in which templates list tools."""
    schema = spec.schema or {"type": "object", "properties": {}}
    function = {"name": spec.name, "description": spec.description, "parameters": schema}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)
