"""Makes the specification of a tool, one function for each type of tool.

Tools that the client runs and that OpenAI's models use without a schema (local_shell, shell,
apply_patch, a client's tool_search) get a schema here.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from schemas.conversation import Grammar, HostedTool, ToolSpec
from services.frontend.apis.responses import wire
from services.frontend.apis.shared.openai.wording import invalid_value, missing_parameter
from services.frontend.apis.shared.tools import BuiltInTool, checked_grammar
from services.frontend.content.hosted_tools import hosted_spec

TOOL_SEARCH = "tool_search"
SEARCH_KIND: Final = "tool_search_bm25"
"""How this server searches for tools."""
WEB_SEARCH = "web_search"
WEB_SEARCH_TYPES = frozenset(
    {WEB_SEARCH, "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"}
)


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}
BUILT_IN = {
    "local_shell": BuiltInTool(
        "Runs a command on the user's machine.",
        {
            "command": {**_STRINGS, "description": "The program and its arguments."},
            "working_directory": {**_STRING, "description": "Where to run it."},
            "env": {
                "type": "object",
                "additionalProperties": _STRING,
                "description": "Environment variables to set.",
            },
            "timeout_ms": {**_INTEGER, "description": "Stop it after so many milliseconds."},
            "user": {**_STRING, "description": "The user to run it as."},
        },
        ("command",),
    ),
    "shell": BuiltInTool(
        "Runs shell commands, at the same time, and returns what each wrote.",
        {
            "commands": {**_STRINGS, "description": "The commands."},
            "timeout_ms": {**_INTEGER, "description": "Stop them after so many milliseconds."},
            "max_output_length": {
                **_INTEGER,
                "description": "Keep at most so many characters of output.",
            },
        },
        ("commands",),
    ),
    "apply_patch": BuiltInTool(
        "Creates, changes or deletes one file.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {**_STRING, "description": "Path of the file, from the workspace's root."},
            "diff": {**_STRING, "description": "The change as a V4A diff; not for delete_file."},
        },
        ("type", "path"),
    ),
    TOOL_SEARCH: BuiltInTool(
        "Searches for tools that are not shown yet; those that it finds can be called afterwards.",
        {"query": {**_STRING, "description": "What the tools should do."}},
        ("query",),
    ),
}


def function_spec(tool: wire.ResponsesTool, field_path: str) -> ToolSpec:
    """A function. Raises Invalid."""
    return ToolSpec(
        name_of(tool, field_path),
        description=tool.description or "",
        schema=tool.parameters or {},
        deferred=bool(tool.defer_loading),
        strict=tool.strict,
    )


def freeform_spec(tool: wire.ResponsesTool, field_path: str, grammars: int) -> ToolSpec:
    """A freeform tool. `grammars`: how many tools before it have one. Raises Invalid."""
    return ToolSpec(
        name_of(tool, field_path),
        description=tool.description or "",
        kind="custom",
        deferred=bool(tool.defer_loading),
        strict=tool.strict,
        grammar=_grammar(tool.format, f"{field_path}.format", grammars),
    )


def built_in_spec(tool: wire.ResponsesTool) -> ToolSpec:
    """A tool with a type in `BUILT_IN`."""
    built_in = BUILT_IN[tool.type]
    return ToolSpec(
        tool.type,
        description=tool.description or built_in.description,
        schema=tool.parameters or built_in.schema,
    )


def web_search_specs(tool: wire.ResponsesTool, served: frozenset[str]) -> list[ToolSpec]:
    """The tools for a `web_search`: a search and, where it is served, a fetch for the action
    `open_page`. Empty where the client accepts only cached pages, which no provider has."""
    if tool.external_web_access is False:
        return []
    filters = tool.filters or wire.SearchFilters()
    specs = []
    for kind in (WEB_SEARCH, "web_fetch"):
        if kind in served:
            hosted = HostedTool(
                kind,  # type: ignore[arg-type]
                allowed_domains=filters.allowed_domains or [],
                blocked_domains=filters.blocked_domains or [],
                location=tool.user_location or {},
            )
            specs.append(hosted_spec(hosted))
    return specs


def tool_search_spec(name: str, namespaces: Mapping[str, str]) -> ToolSpec:
    """The search of deferred tools that this server runs. `namespaces`: those of the tools with
    their descriptions, which the model knows before it searches."""
    spec = hosted_spec(HostedTool(SEARCH_KIND), name)
    if not namespaces:
        return spec
    lines = [
        f"- {namespace}: {about}" if about else f"- {namespace}"
        for namespace, about in namespaces.items()
    ]
    overview = "\n".join(["Their namespaces:", *lines])
    return replace(spec, description=f"{spec.description} {overview}")


def name_of(tool: wire.ResponsesTool, field_path: str) -> str:
    """The name of a tool that needs one. Raises Invalid."""
    if not tool.name:
        raise missing_parameter(f"{field_path}.name")
    return tool.name


def _grammar(format: wire.ToolFormat | None, field_path: str, earlier: int) -> Grammar | None:
    if format is None or format.type == "text":
        return None
    if format.type != "grammar":
        raise invalid_value(format.type, f"{field_path}.type", ("text", "grammar"))
    if format.definition is None:
        raise missing_parameter(f"{field_path}.definition")
    if format.syntax not in ("lark", "regex"):
        raise invalid_value(str(format.syntax), f"{field_path}.syntax", ("lark", "regex"))
    return checked_grammar(format.syntax, format.definition, f"{field_path}.definition", earlier)
