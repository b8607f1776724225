"""Tools of a Responses request as the model is told of them (apis.md B.4).

Functions and freeform tools pass through, those of a namespace with it. Tools that the client runs and OpenAI's models
know without a schema (local_shell, shell, apply_patch, a client's tool_search) get one here. Tools that OpenAI's
servers run cannot be served: they are left out and named in the notes, because Codex sends `web_search` with every
request and a 400 would end its session.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Grammar, ToolChoice, ToolSpec
from schemas.errors import Invalid
from services.frontend.dialects.known_parts import KnownParts, Spelled
from services.frontend.dialects.responses import wire
from services.frontend.dialects.responses.names import CallKind, Named
from services.frontend.dialects.responses.request import ResponsesRequest, given
from services.frontend.dialects.responses.wording import convert, invalid_value, missing_parameter, unsupported

TOOL_SEARCH = "tool_search"
_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}
_BUILT_IN: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "local_shell": (
        "Runs a command on the user's machine.",
        {
            "command": {**_STRINGS, "description": "The program and its arguments."},
            "working_directory": {**_STRING, "description": "Where to run it."},
            "env": {"type": "object", "additionalProperties": _STRING, "description": "Environment variables to set."},
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
            "max_output_length": {**_INTEGER, "description": "Keep at most so many characters of output."},
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
_type = msgspec.json.Decoder(wire.ToolType)
_tool = msgspec.json.Decoder(wire.Tool)
_choice = msgspec.json.Decoder(str | wire.ToolChoice)
_named = msgspec.json.Decoder(wire.NamedTool)
_MODES = ("none", "auto", "required")


class Offered(Struct):
    """The tools of a request, as they come together."""

    specs: dict[str, ToolSpec]
    """By the name that the model is told."""
    named: dict[str, Named]
    dropped: list[str]
    """The types of those that were left out."""
    loaded: set[str]
    """Told names of those that a search has found: their place is where they were found."""
    searched_by_client: bool = False
    shown: list[ToolSpec] | None = None
    """What `settled` gives, as long as nothing is added."""

    def add(self, raws: Iterable[Raw], place: str, *, deferred: bool = False, once: bool = False) -> list[str]:
        """Takes tools; returns their told names. `deferred`: they are known from where they are loaded. `once`: two of
        one name are an error, else the first stays. Raises Invalid."""
        self.shown = None
        told: list[str] = []
        for index, raw in enumerate(raws):
            at = f"{place}[{index}]"
            tool = self._read(raw, at)
            if tool is None:
                continue
            if tool.type == "namespace":
                told += self._namespace(tool, at, deferred=deferred, once=once)
            elif (spec := self._spec(tool, at)) is not None:
                told.append(self._take(spec, _kind(tool), at, deferred=deferred, once=once))
        return told

    @classmethod
    def of(cls, raws: Sequence[Raw], known: "KnownParts[Offered]") -> "Offered":
        """The request's own tools, to which others may be added. Raises Invalid."""

        def read(_: bytes) -> Offered:
            offered = cls({}, {}, [], set())
            offered.add(raws, "tools", once=True)
            shown = offered.settled()
            offered.shown = Spelled(shown) if shown else shown
            return offered

        found = known.get(b",".join(raws), read)
        return cls(
            found.specs.copy(),
            found.named.copy(),
            found.dropped.copy(),
            found.loaded.copy(),
            found.searched_by_client,
            found.shown,
        )

    def settled(self) -> list[ToolSpec]:
        """The tools to show. Where the client cannot search, nobody could ever load a deferred one: then all are known
        from the start."""
        if self.shown is not None:
            return self.shown
        if self.searched_by_client:
            return list(self.specs.values())
        return [
            msgspec.structs.replace(spec, deferred=False) if spec.deferred and told not in self.loaded else spec
            for told, spec in self.specs.items()
        ]

    def _namespace(self, tool: wire.Tool, at: str, *, deferred: bool, once: bool) -> list[str]:
        if not tool.name:
            raise missing_parameter(f"{at}.name")
        told: list[str] = []
        for index, raw in enumerate(tool.tools or []):
            inside = f"{at}.tools[{index}]"
            inner = self._read(raw, inside)
            spec = self._spec(inner, inside) if inner is not None else None
            if inner is None or spec is None:
                continue
            if not told and tool.description:
                # A template has no place for what a namespace is about: its first tool says so.
                about = f"{tool.name}: {tool.description}"
                text = f"{about}\n\n{spec.description}" if spec.description else about
                spec = msgspec.structs.replace(spec, description=text)
            spec = msgspec.structs.replace(spec, namespace=tool.name)
            told.append(self._take(spec, _kind(inner), inside, deferred=deferred, once=once))
        return told

    def _read(self, raw: Raw, at: str) -> wire.Tool | None:
        """A tool of a type that can be served; None for another, of which nothing but the type is looked at."""
        kind = convert(_type, raw, at).type
        if kind in _SERVED:
            return convert(_tool, raw, at)
        self.dropped.append(kind)
        return None

    def _take(self, spec: ToolSpec, kind: CallKind, at: str, *, deferred: bool, once: bool) -> str:
        named = Named(kind, spec.name, spec.namespace)
        if named.told in self.specs:
            if once:
                raise Invalid(f"Tool names must be unique: '{named.told}'.", param=f"{at}.name", code="invalid_value")
            return named.told
        if deferred:
            spec = msgspec.structs.replace(spec, deferred=True)
            self.loaded.add(named.told)
        self.specs[named.told] = spec
        self.named[named.told] = named
        return named.told

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
                grammar=_grammar(tool.format, at) if custom else None,
            )
        if tool.type == TOOL_SEARCH:
            if tool.execution != "client":
                return None
            self.searched_by_client = True
        elif tool.type not in _BUILT_IN or _in_a_container(tool):
            self.dropped.append(tool.type)
            return None
        description, properties, required = _BUILT_IN[tool.type]
        schema = tool.parameters or {"type": "object", "properties": properties, "required": list(required)}
        return ToolSpec(tool.type, description=tool.description or description, schema=schema)


def choice(request: ResponsesRequest, offered: Offered) -> ToolChoice:
    """What the request says about calling. Raises Invalid where it cannot be met."""
    body = request.body
    parallel = body.parallel_tool_calls is not False
    if not given(body.tool_choice):
        return ToolChoice(parallel=parallel)
    wanted = convert(_choice, body.tool_choice, "tool_choice")
    if isinstance(wanted, str):
        if wanted not in _MODES:
            raise invalid_value(wanted, "tool_choice", _MODES)
        if wanted == "required" and not offered.specs:
            raise _without_tools(offered)
        return ToolChoice({"required": "any", "auto": "auto", "none": "none"}[wanted], parallel=parallel)  # type: ignore[arg-type]
    if wanted.type == "allowed_tools":
        return _allowed(wanted, offered, parallel)
    named = _find(wanted.type, wanted.name, wanted.namespace, offered)
    if named is None:
        if wanted.type in ("function", "custom"):
            name = wanted.name or ""
            raise Invalid(
                f"Tool choice '{name}' not found in 'tools' parameter.", param="tool_choice", code="invalid_value"
            )
        raise unsupported("tool_choice", f"asks for '{wanted.type}', which this server does not run")
    return ToolChoice("tool", name=named.name, namespace=named.namespace, parallel=parallel)


def _allowed(wanted: wire.ToolChoice, offered: Offered, parallel: bool) -> ToolChoice:
    names: list[str] = []
    for index, raw in enumerate(wanted.tools or []):
        tool = convert(_named, raw, f"tool_choice.tools[{index}]")
        if tool.type == "namespace":
            names += [named.told for named in offered.named.values() if named.namespace == tool.name]
            continue
        named = _find(tool.type, tool.name, tool.namespace, offered)
        if named is not None:
            names.append(named.told)
        elif tool.type in ("function", "custom"):
            raise Invalid(
                f"Tool choice '{tool.name}' not found in 'tools' parameter.",
                param=f"tool_choice.tools[{index}]",
                code="invalid_value",
            )
    if not names:
        if wanted.mode == "required":
            raise _without_tools(offered)
        return ToolChoice("none", parallel=parallel)
    return ToolChoice("any" if wanted.mode == "required" else "auto", parallel=parallel, allowed=names)


def _find(kind: str, name: str | None, namespace: str | None, offered: Offered) -> Named | None:
    """The tool that a choice means. One in a namespace may also be named by `namespace__name`, or by its bare name
    where no tool outside has it."""
    if kind not in ("function", "custom"):
        return next((named for named in offered.named.values() if named.kind == kind), None)
    if not name:
        raise missing_parameter("tool_choice.name")
    if namespace is None and name in offered.named:
        return offered.named[name]
    return next(
        (
            named
            for named in offered.named.values()
            if named.name == name and named.kind in ("function", "custom") and namespace in (None, named.namespace)
        ),
        None,
    )


def _without_tools(offered: Offered) -> Invalid:
    if offered.dropped:
        return unsupported(
            "tool_choice", f"asks for one of {', '.join(offered.dropped)}, which this server does not run"
        )
    return Invalid("Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")


def _grammar(format: wire.ToolFormat | None, at: str) -> Grammar | None:
    if format is None or format.type == "text":
        return None
    if format.type != "grammar":
        raise invalid_value(format.type, f"{at}.format.type", ("text", "grammar"))
    if format.definition is None:
        raise missing_parameter(f"{at}.format.definition")
    if format.syntax not in ("lark", "regex"):
        raise invalid_value(str(format.syntax), f"{at}.format.syntax", ("lark", "regex"))
    return Grammar(format.syntax, format.definition)


def _kind(tool: wire.Tool) -> CallKind:
    return tool.type  # type: ignore[return-value]


def _in_a_container(tool: wire.Tool) -> bool:
    """Such a shell runs on OpenAI's machines."""
    return tool.environment is not None and tool.environment.type != "local"
