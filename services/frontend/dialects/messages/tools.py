"""Tools of a Messages request as the model is told of them.

Custom tools pass through. Tools whose schema the request leaves out because Anthropic's models know it (bash, text
editor, memory) get one here; the client runs them as any other. Tools that Anthropic's servers run cannot be served:
they are left out and named in the notes, because Claude Code's WebSearch asks with nothing else and takes a plain
answer, while a 400 fails its tool call.
"""

from typing import Any

import msgspec

from schemas.conversation import ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.frontend.dialects.known_parts import KnownParts, Spelled
from services.frontend.dialects.messages import wire
from services.frontend.dialects.messages.content import raw_text

_tools = msgspec.json.Decoder(list[wire.Tool] | None)
CUSTOM = "custom"
HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset")
_SEARCH = "tool_search_tool_"
_STRING = {"type": "string"}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "First and last line to show; -1 as the last: to the end.",
}
_EDITS: dict[str, Any] = {
    "path": {**_STRING, "description": "Absolute path of the file or directory."},
    "file_text": {**_STRING, "description": "For create: the content of the file."},
    "old_str": {**_STRING, "description": "For str_replace: the text to replace; it must occur exactly once."},
    "new_str": {**_STRING, "description": "For str_replace: the text to put in its place."},
    "insert_line": {"type": "integer", "description": "For insert: the line after which to insert; 0: at the top."},
    "insert_text": {**_STRING, "description": "For insert: the text to insert."},
    "view_range": _RANGE,
}


class Tools:
    """The tools of a request body, and what is told of them: made when it is first asked for, and once."""

    __slots__ = ("_specs", "given")

    def __init__(self, given: list[wire.Tool] | None) -> None:
        self.given = given
        self._specs: tuple[list[ToolSpec], list[str]] | None = None

    @property
    def specs(self) -> tuple[list[ToolSpec], list[str]]:
        """See `specs`; not to be changed. Raises Invalid."""
        if self._specs is None:
            shown, dropped = specs(self.given or [])
            self._specs = (Spelled(shown) if shown else shown, dropped)
        return self._specs


def take(body: Any, known: KnownParts[Tools]) -> Tools:
    """The tools of a body that has them as JSON; from now on it has them typed. Raises msgspec.ValidationError."""
    tools = known.get(bytes(body.tools), _read)
    body.tools = tools.given
    return tools


def _read(data: bytes) -> Tools:
    return Tools(_tools.decode(data))


def specs(tools: list[wire.Tool]) -> tuple[list[ToolSpec], list[str]]:
    """The tools to show to the model, and the types of those that were left out.

    Raises Invalid for a type that neither the client nor this server can run, and for two tools of one name.
    """
    shown: list[ToolSpec] = []
    dropped: list[str] = []
    for index, tool in enumerate(tools):
        if tool.type is not None and tool.type.startswith(HOSTED):
            dropped.append(tool.type)
        else:
            shown.append(spec(tool, f"tools.{index}"))
    names = [tool.name for tool in shown]
    if len(set(names)) < len(names):
        raise Invalid("tools: Tool names must be unique.", code="tool_name_conflict")
    if any(kind.startswith(_SEARCH) for kind in dropped):
        # Nobody can search for them, so all that could be found is known from the start.
        shown = [msgspec.structs.replace(tool, deferred=False) for tool in shown]
    return shown, dropped


def spec(tool: wire.Tool, path: str) -> ToolSpec:
    """One tool. Raises Invalid."""
    kind = tool.type or CUSTOM
    if kind == CUSTOM:
        if not tool.name:
            raise Invalid(f"{path}.custom.name: Field required", param=f"{path}.name")
        if tool.input_schema is None:
            raise Invalid(f"{path}.custom.input_schema: Field required", param=f"{path}.input_schema")
        description, schema = _described(tool), tool.input_schema
    else:
        description, schema = _known(kind, path)
    return ToolSpec(
        tool.name or _known_name(kind),
        description=description,
        schema=schema,
        deferred=bool(tool.defer_loading),
        strict=tool.strict,
    )


def choice(body: wire.Body, tools: list[ToolSpec]) -> ToolChoice:
    """What the request says about calling. Raises Invalid where it cannot be met."""
    given = body.tool_choice
    if given is None:
        return ToolChoice()
    if not body.tools and not tools:
        raise Invalid("tool_choice: may only be specified while providing tools.", param="tool_choice")
    if given.type == "tool" and not given.name:
        raise Invalid("tool_choice.tool.name: Field required", param="tool_choice.name")
    parallel = not given.disable_parallel_tool_use
    forced = given.type in ("any", "tool")
    if forced and body.thinking is not None and body.thinking.type == "enabled":
        raise Invalid("Thinking may not be enabled when tool_choice forces tool use.", param="tool_choice")
    if not tools:
        return ToolChoice(parallel=parallel)
    if given.type != "tool":
        return ToolChoice(given.type, parallel=parallel)
    if any(tool.name == given.name for tool in tools):
        return ToolChoice("tool", name=given.name, parallel=parallel)
    if any(tool.name == given.name and (tool.type or CUSTOM).startswith(HOSTED) for tool in body.tools or []):
        return ToolChoice(parallel=parallel)
    raise Invalid(f"tool_choice.tool.name: Tool '{given.name}' not found in provided tools", param="tool_choice")


def _described(tool: wire.Tool) -> str:
    text = tool.description or ""
    if not tool.input_examples:
        return text
    examples = "\n".join(raw_text(example) for example in tool.input_examples)
    return f"{text}\n\nExamples of input:\n{examples}".lstrip()


def _known(kind: str, path: str) -> tuple[str, dict[str, Any]]:
    if kind.startswith("bash_"):
        return "Runs commands in a bash shell that persists between calls.", _object(
            {
                "command": {**_STRING, "description": "The command to run."},
                "restart": {"type": "boolean", "description": "True: start the shell anew."},
            },
        )
    if kind.startswith("text_editor_"):
        commands = ["view", "create", "str_replace", "insert"]
        return "Shows, creates and edits files.", _commands(commands, _EDITS)
    if kind.startswith("memory_"):
        commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
        renames = {"old_path": {**_STRING, "description": "For rename."}, "new_path": _STRING}
        return "Keeps notes in files under /memories between conversations.", _commands(commands, {**_EDITS, **renames})
    raise Invalid(
        f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
        "'custom', 'bash_20250124', 'memory_20250818', 'text_editor_20250124', 'text_editor_20250429', "
        "'text_editor_20250728'",
        param=f"{path}.type",
    )


def _known_name(kind: str) -> str:
    if kind.startswith("bash_"):
        return "bash"
    if kind.startswith("memory_"):
        return "memory"
    return "str_replace_editor" if kind == "text_editor_20250124" else "str_replace_based_edit_tool"


def _commands(commands: list[str], fields: dict[str, Any]) -> dict[str, Any]:
    return _object({"command": {"type": "string", "enum": commands}, **fields}, "command")


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}
