"""Converts the tools and the `tool_choice` of a Responses request.

Functions and freeform tools pass through, also those in a namespace. Tools that the client runs and
that OpenAI's models use without a schema (local_shell, shell, apply_patch, a client's tool_search)
get a schema here. `web_search` is served where the operator has a provider. Other tools that
OpenAI's servers run are left out, and named in the notes and to the model: Codex sends `web_search`
with every request, and a 400 would end its session.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.conversation import Grammar, HostedTool, ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.request.body import ResponsesRequest
from services.frontend.apis.shared.decode import is_set
from services.frontend.apis.shared.openai.wording import (
    invalid_value,
    missing_parameter,
    unsupported,
)
from services.frontend.apis.shared.tools import checked_grammar
from services.frontend.hosted.tools import hosted_spec
from services.runtime.memo import Memo

CallKind: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "web_search"
]

TOOL_SEARCH = "tool_search"
WEB_SEARCH = "web_search"
WEB_SEARCH_TYPES = frozenset(
    {WEB_SEARCH, "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"}
)
_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}
_BUILT_IN: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "local_shell": (
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
    "shell": (
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
    "apply_patch": (
        "Creates, changes or deletes one file.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {**_STRING, "description": "Path of the file, from the workspace's root."},
            "diff": {**_STRING, "description": "The change as a V4A diff; not for delete_file."},
        },
        ("type", "path"),
    ),
    TOOL_SEARCH: (
        "Searches for tools that are not shown yet; those that it finds can be called afterwards.",
        {"query": {**_STRING, "description": "What the tools should do."}},
        ("query",),
    ),
}
_SERVED = frozenset({"function", "custom", "namespace", *_BUILT_IN})
_MODES: dict[str, Any] = {"none": "none", "auto": "auto", "required": "any"}
_NAMED = ("function", "custom")


class ToolName(Struct, frozen=True):
    """A tool as this API names it."""

    kind: CallKind
    name: str
    namespace: str | None = None

    @property
    def rendered(self) -> str:
        """The one name that the model sees, as `services.templates.wording.tool_name` writes it."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


def tool_name(names: Mapping[str, ToolName], rendered: str) -> ToolName:
    """The tool with a rendered name; an unknown name is that of a function."""
    return names.get(rendered) or ToolName("function", rendered)


class RequestTools(Struct):
    """The tools of a request by their rendered names."""

    specs: dict[str, ToolSpec]
    names: dict[str, ToolName]
    dropped: list[str]
    """The types of the tools that were left out."""
    search_results: set[str]
    """Rendered names of the tools that a search found; the prompt has them at the search's result."""
    served: frozenset[str] = frozenset()
    """The kinds of hosted tools that this server runs."""
    client_searches: bool = False
    grammars: int = 0
    settled_specs: list[ToolSpec] | None = None
    """The result of `final_specs`; None after a change."""

    @classmethod
    def of(
        cls, raws: Sequence[Raw], memo: "Memo[RequestTools]", served: frozenset[str] = frozenset()
    ) -> "RequestTools":
        """The request's own tools, to which others may be added. Raises Invalid."""

        def read(_: bytes) -> RequestTools:
            tools = cls({}, {}, [], set(), served)
            tools.add(raws, "tools", unique=True)
            tools.settled_specs = tools.final_specs()
            return tools

        own = memo.get(b",".join(raws), read)
        return replace(
            own,
            specs=own.specs.copy(),
            names=own.names.copy(),
            dropped=own.dropped.copy(),
            search_results=own.search_results.copy(),
        )

    def add(
        self,
        raws: Iterable[Raw],
        place: str,
        *,
        from_search: bool = False,
        unique: bool = False,
        namespace: wire.Tool | None = None,
    ) -> list[str]:
        """Adds tools and returns their rendered names. Raises Invalid.

        `from_search`: a search found them. `unique`: two tools with one name are an error;
        otherwise the first stays.
        """
        self.settled_specs = None
        rendered: list[str] = []
        for index, raw in enumerate(raws):
            at = f"{place}[{index}]"
            kind = convert(wire.ToolType, raw, at).type
            if kind in WEB_SEARCH_TYPES and WEB_SEARCH in self.served:
                searches = _search_specs(convert(wire.Tool, raw, at), self.served)
                for search in searches:
                    self.specs.setdefault(search.name, search)
                    self.names.setdefault(search.name, ToolName("web_search", search.name))
                self.dropped += [] if searches else [kind]
                continue
            if kind not in _SERVED:  # only the type is decoded
                self.dropped.append(kind)
                continue
            tool = convert(wire.Tool, raw, at)
            if tool.type == "namespace" and namespace is None:
                if not tool.name:
                    raise missing_parameter(f"{at}.name")
                rendered += self.add(
                    tool.tools or [],
                    f"{at}.tools",
                    from_search=from_search,
                    unique=unique,
                    namespace=tool,
                )
                continue
            spec = self._spec(tool, at)
            if spec is None:
                continue
            if namespace is not None:
                if not rendered and namespace.description:
                    # Templates have no place for a namespace's description: it precedes that of the
                    # first tool.
                    about = f"{namespace.name}: {namespace.description}"
                    text = f"{about}\n\n{spec.description}" if spec.description else about
                    spec = replace(spec, description=text)
                spec = replace(spec, namespace=namespace.name)
            name = ToolName(tool.type, spec.name, spec.namespace)  # type: ignore[arg-type]
            rendered.append(name.rendered)
            if name.rendered in self.specs and self.specs[name.rendered].hosted is None:
                if unique:
                    message = f"Tool names must be unique: '{name.rendered}'."
                    raise Invalid(message, param=f"{at}.name", code="invalid_value")
                continue
            if from_search:
                spec = replace(spec, deferred=True)
                self.search_results.add(name.rendered)
            self.specs[name.rendered] = spec
            self.names[name.rendered] = name
        return rendered

    def runs(self, name: str) -> bool:
        """Whether this server runs the tool."""
        return (spec := self.specs.get(name)) is not None and spec.hosted is not None

    def final_specs(self) -> list[ToolSpec]:
        """The tools for the prompt. Without a client's search nothing could load a deferred tool,
        so none is deferred."""
        if self.settled_specs is not None:
            return self.settled_specs
        if self.client_searches:
            return list(self.specs.values())
        return [
            replace(spec, deferred=False)
            if spec.deferred and name not in self.search_results
            else spec
            for name, spec in self.specs.items()
        ]

    def _grammar(self, format: wire.ToolFormat | None, at: str) -> Grammar | None:
        if format is None or format.type == "text":
            return None
        if format.type != "grammar":
            raise invalid_value(format.type, f"{at}.format.type", ("text", "grammar"))
        if format.definition is None:
            raise missing_parameter(f"{at}.format.definition")
        if format.syntax not in ("lark", "regex"):
            raise invalid_value(str(format.syntax), f"{at}.format.syntax", ("lark", "regex"))
        self.grammars += 1
        return checked_grammar(
            format.syntax, format.definition, f"{at}.format.definition", self.grammars - 1
        )

    def _spec(self, tool: wire.Tool, at: str) -> ToolSpec | None:
        """One tool; None where it is left out."""
        if tool.type in ("function", "custom"):
            if not tool.name:
                raise missing_parameter(f"{at}.name")
            custom = tool.type == "custom"
            return ToolSpec(
                tool.name,
                description=tool.description or "",
                schema={} if custom else tool.parameters or {},
                kind="custom" if custom else "function",
                deferred=bool(tool.defer_loading),
                strict=tool.strict,
                grammar=self._grammar(tool.format, at) if custom else None,
            )
        if tool.type == TOOL_SEARCH:
            if tool.execution != "client":
                return None
            self.client_searches = True
        elif tool.type not in _BUILT_IN or (
            tool.environment is not None and tool.environment.type != "local"
        ):
            self.dropped.append(tool.type)  # a shell in a container runs on OpenAI's machines
            return None
        description, properties, required = _BUILT_IN[tool.type]
        schema = tool.parameters or {
            "type": "object",
            "properties": properties,
            "required": list(required),
        }
        return ToolSpec(tool.type, description=tool.description or description, schema=schema)


def _search_specs(tool: wire.Tool, served: frozenset[str]) -> list[ToolSpec]:
    """The tools for a `web_search`: a search and, where it is served, a fetch for the action
    `open_page`. Empty where the client accepts only cached pages, which no provider has."""
    if tool.external_web_access is False:
        return []
    filters = tool.filters or wire.SearchFilters()
    return [
        hosted_spec(
            HostedTool(
                kind,  # type: ignore[arg-type]
                allowed_domains=filters.allowed_domains or [],
                blocked_domains=filters.blocked_domains or [],
                location=tool.user_location or {},
            )
        )
        for kind in (WEB_SEARCH, "web_fetch")
        if kind in served
    ]


def choice(request: ResponsesRequest, tools: RequestTools) -> ToolChoice:
    """The request's `tool_choice`. Raises Invalid where it cannot be met."""
    body = request.body
    parallel = body.parallel_tool_calls is not False
    if not is_set(body.tool_choice):
        return ToolChoice(parallel=parallel)
    chosen = convert(str | wire.ToolChoice, body.tool_choice, "tool_choice")
    if isinstance(chosen, str):
        if chosen not in _MODES:
            raise invalid_value(chosen, "tool_choice", tuple(_MODES))
        if chosen == "required" and not tools.specs:
            raise _nothing_to_call(tools)
        return ToolChoice(_MODES[chosen], parallel=parallel)
    if chosen.type == "allowed_tools":
        return _allowed(chosen, tools, parallel)
    name = _find(chosen, tools, _index(tools))
    if name is not None:
        return ToolChoice("tool", name=name.name, namespace=name.namespace, parallel=parallel)
    if chosen.type in ("function", "custom"):
        raise _not_offered(chosen.name or "", "tool_choice")
    raise unsupported("tool_choice", f"asks for '{chosen.type}', which this server does not run")


def _allowed(chosen: wire.ToolChoice, tools: RequestTools, parallel: bool) -> ToolChoice:
    allowed: dict[str, None] = {}
    found, namespaces = _index(tools), dict[str | None, list[str]]()
    for name in tools.names.values():
        namespaces.setdefault(name.namespace, []).append(name.rendered)
    for index, raw in enumerate(chosen.tools or []):
        place = f"tool_choice.tools[{index}]"
        tool = convert(wire.AllowedTool, raw, place)
        if tool.type == "namespace":
            allowed |= dict.fromkeys(namespaces.pop(tool.name, ()))
        elif (called := _find(tool, tools, found)) is not None:
            allowed[called.rendered] = None
        elif tool.type in ("function", "custom"):
            raise _not_offered(tool.name, place)
    required = chosen.mode == "required"
    if allowed:
        return ToolChoice("any" if required else "auto", parallel=parallel, allowed=[*allowed])
    if required:
        raise _nothing_to_call(tools)
    return ToolChoice("none", parallel=parallel)


def _index(tools: RequestTools) -> dict[tuple[str | None, ...], ToolName]:
    """The first tool of each kind without a name of its own, and of each name and namespace, also
    by the name alone."""
    index: dict[tuple[str | None, ...], ToolName] = {}
    for name in tools.names.values():
        if name.kind in _NAMED:
            index.setdefault((name.name, name.namespace), name)
            index.setdefault((name.name, None), name)
        else:
            index.setdefault((name.kind,), name)
    return index


def _find(
    chosen: wire.ToolChoice | wire.AllowedTool,
    tools: RequestTools,
    index: Mapping[tuple[str | None, ...], ToolName],
) -> ToolName | None:
    """The tool that a choice names. A tool in a namespace may also be named `namespace__name`, or
    by its bare name if no tool outside has that name."""
    if chosen.type not in _NAMED:
        return index.get((WEB_SEARCH if chosen.type in WEB_SEARCH_TYPES else chosen.type,))
    if not chosen.name:
        raise missing_parameter("tool_choice.name")
    if chosen.namespace is None and chosen.name in tools.names:
        return tools.names[chosen.name]
    return index.get((chosen.name, chosen.namespace))


def _not_offered(name: str | None, place: str) -> Invalid:
    return Invalid(
        f"Tool choice '{name}' not found in 'tools' parameter.", param=place, code="invalid_value"
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
