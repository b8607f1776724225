"""Fits the scripted agent's calls to the tools of any client, by their names and JSON schemas.
Pure.

A tool's arguments have roles: `cmd`, `command` and `commands` are the command, `files[].path` is
the path. What has no role gets the least value that the schema takes.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from turnwire_tools.script.agent_prompt import OfferedTool
from turnwire_tools.script.agent_schema import Schema, instance

Role: TypeAlias = Literal["command", "path", "text", "old", "new", "patch", "answer", "description"]
ToolKind: TypeAlias = Literal["shell", "read", "write", "edit", "patch", "finish"]


class AgentCall(Struct, frozen=True):
    """A call as the agent makes it."""

    name: str
    arguments: dict[str, Any]


_NAMES: dict[ToolKind, str] = {
    "shell": "bash exec_command shell shell_command local_shell exec run_shell_command run_shell "
    "run_command run_commands execute_command run_terminal_cmd terminal",
    "read": "read read_file read_files view_file view open_file cat",
    "write": "write write_file create_file write_to_file",
    "edit": "edit edit_file editor replace str_replace replace_in_file",
    "patch": "apply_patch",
    "finish": "submit_and_exit attempt_completion final_answer submit_answer",
}
_NEEDS: dict[ToolKind, frozenset[Role]] = {
    "shell": frozenset({"command"}),
    "read": frozenset({"path"}),
    "write": frozenset({"path", "text"}),
    "edit": frozenset({"old", "new"}),
    "patch": frozenset({"patch"}),
    "finish": frozenset({"answer"}),
}
_WORDS: dict[Role, str] = {
    "command": "command cmd script commandline",
    "path": "filepath path filename file targetfile absolutepath",
    "text": "content text filetext",
    "old": "oldstring oldtext oldstr old search",
    "new": "newstring newtext newstr new replace replacement",
    "patch": "input patch patchtext",
    "answer": "answer result summary",
    "description": "description",
}
_ROLES: dict[str, Role] = {word: role for role, words in _WORDS.items() for word in words.split()}
_READS = ("read", "view", "open")


def find_tool(kind: ToolKind, tools: list[OfferedTool]) -> OfferedTool | None:
    """The tool of this kind: by its name, else by what its schema takes. None if there is none."""
    by_name = {tool.name.lower().rpartition(".")[2]: tool for tool in reversed(tools)}
    for name in _NAMES[kind].split():
        tool = by_name.get(name)
        if tool is None:
            continue
        if not _properties(tool.schema) or _NEEDS[kind] <= _roles(tool.schema):
            return tool
    return next((tool for tool in tools if _fits(kind, tool)), None)


def make_call(tool: OfferedTool, values: Mapping[Role, str]) -> AgentCall:
    """A call that gives `values` to the tool, nested as its schema nests them."""
    if not _properties(tool.schema):
        plain: dict[str, Any] = {
            role: value for role, value in values.items() if role != "description"
        }
        return AgentCall(tool.name, plain)

    arguments = dict(values)
    takes_text = "text" in _roles(tool.schema)
    if "text" in arguments and not takes_text:
        # An editor that creates files takes it as the new text.
        arguments["new"] = arguments.pop("text")
    return AgentCall(tool.name, _complete(_fill(tool.schema, arguments), tool.schema))


def _fits(kind: ToolKind, tool: OfferedTool) -> bool:
    """Whether a tool with an unknown name does this."""
    roles = _roles(tool.schema)
    required = _roles(tool.schema, required=True)
    match kind:
        case "shell":
            return "command" in required
        case "read":
            changes_files = bool(roles & {"text", "old", "new"})
            reads = tool.name.lower().startswith(_READS)
            return "path" in required and reads and not changes_files
        case "write":
            if {"path", "text"} <= required:
                return True
            return {"path", "new"} <= required and "old" not in required
        case "edit":
            return {"path", "old", "new"} <= roles
        case "patch" | "finish":
            return False


def _roles(schema: Any, *, required: bool = False) -> set[Role]:
    """The roles of a schema's arguments, those inside lists and objects too; `required`: only what
    is required."""
    roles: set[Role] = set()
    for name, node in _properties(schema).items():
        if required and name not in _required(schema):
            continue
        items = _items(_concrete(node))
        if _properties(items):
            roles |= _roles(items, required=required)
            continue
        role = _role(name)
        if role is not None:
            roles.add(role)
    return roles


def _fill(schema: Schema, values: Mapping[Role, str]) -> dict[str, Any]:
    """The arguments that have a role and a value."""
    filled: dict[str, Any] = {}
    for name, raw in _properties(schema).items():
        node = _concrete(raw)
        value = _value_of(name, node, values)
        if value is None:
            continue
        if node.get("type") != "array":
            filled[name] = value
        elif _is_argv(name, node):
            filled[name] = ["bash", "-lc", value]
        else:
            filled[name] = [value]
    return filled


def _is_argv(name: str, node: Schema) -> bool:
    """Whether a list holds the words of one command, not several commands."""
    has_objects = bool(_properties(_items(node)))
    return _role(name) == "command" and not has_objects and not name.endswith("s")


def _value_of(name: str, node: Schema, values: Mapping[Role, str]) -> Any:
    """The value of one argument, or of an item where it is a list; None: it has none."""
    items = _items(node)
    if _properties(items):
        nested = _fill(items, values)
        return _complete(nested, items) if nested else None
    role = _role(name)
    if role is None:
        return None
    return values.get(role)


def _complete(arguments: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """With the least value for every other required argument."""
    properties = _properties(schema)
    complete = dict(arguments)
    for name in _required(schema):
        if name not in arguments:
            complete[name] = instance(properties.get(name) or {}, "")
    return complete


def _required(schema: Schema) -> list[str]:
    """The names of required arguments; a client may send anything as a schema."""
    names = schema.get("required")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _role(name: str) -> Role | None:
    word = name.lower().replace("_", "").replace("-", "")
    return _ROLES.get(word) or _ROLES.get(word.removesuffix("s"))


def _properties(schema: Any) -> Schema:
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _items(node: Schema) -> Schema:
    """The schema of a list's items, or the node itself."""
    return _concrete(node.get("items")) if node.get("type") == "array" else node


def _concrete(node: Any) -> Schema:
    """A schema without its alternatives: the first that is not null."""
    if not isinstance(node, dict):
        return {}
    alternatives = node.get("anyOf") or node.get("oneOf")
    if not isinstance(alternatives, list):
        return node
    for alternative in alternatives:
        if isinstance(alternative, dict) and alternative.get("type") != "null":
            return alternative
    return {}
