"""Reads the tools of a Responses request.

Functions and freeform tools pass through, also those in a namespace. Searches of deferred tools are
served, `web_search` where the operator has a provider. Other tools that OpenAI's servers run are
left out, and named in the notes and to the model: Codex sends `web_search` with every request, and
a 400 would end its session.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.conversation import Call, ToolSpec, rendered_name
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.responses.parse.tool_specs import (
    BUILT_IN,
    TOOL_SEARCH,
    WEB_SEARCH,
    WEB_SEARCH_TYPES,
    built_in_spec,
    freeform_spec,
    function_spec,
    name_of,
    tool_search_spec,
    web_search_specs,
)
from services.frontend.apis.shared.decode import one_line
from services.runtime.caches.memo import Memo

CallKind: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "web_search"
]
_SERVED = frozenset({"function", "custom", "namespace", *BUILT_IN})


class ToolName(Struct, frozen=True):
    """A tool as this API names it."""

    kind: CallKind
    name: str
    namespace: str | None = None
    alias: str | None = None
    """The name that the model sees, if the tool before it has the usual one: `a__b__c` may be `c`
    of `a__b`, or `b__c` of `a`."""
    definition: Raw | None = None
    """Its definition as the client wrote it, if this server's search may find it."""

    @property
    def rendered(self) -> str:
        """The one name that the model sees."""
        return self.alias or rendered_name(self.name, self.namespace)


def find_tool_name(names: Mapping[str, ToolName], rendered: str) -> ToolName:
    """The tool with a rendered name; an unknown name is that of a function."""
    return names.get(rendered) or ToolName("function", rendered)


class ToolSource(Struct, frozen=True):
    """Where a list of tools comes from."""

    unique: bool = False
    """Two tools with one name are an error; otherwise the first stays."""
    from_search: bool = False
    """A search found the tools."""
    namespace: str | None = None
    about: str = ""
    """The namespace's description. Templates have no place for it: it precedes that of the first
    tool, or is in that of the search."""
    is_described: bool = False
    """A tool before has the namespace's description."""


class RequestTools(Struct):
    """The tools of a request by their rendered names."""

    specs: dict[str, ToolSpec]
    names: dict[str, ToolName]
    dropped: list[str]
    """The types of the tools that were left out."""
    search_results: set[str]
    """Rendered names of the tools that a search found: the prompt has them in the search's
    result."""
    served: frozenset[str] = frozenset()
    """The kinds of hosted tools that this server runs."""
    client_searches: bool = False
    """The client searches for tools, and loads deferred ones."""
    search: str | None = None
    """The rendered name of this server's search of deferred tools, if the request has one."""
    namespaces: dict[str, str] = {}
    """The descriptions of the namespaces of the tools that it searches, by name."""
    grammars: int = 0
    aliases: dict[tuple[str, str | None], str] = {}
    """The aliases of tools by name and namespace."""
    settled_specs: list[ToolSpec] | None = None
    """The result of `final_specs`; None after a change."""

    @classmethod
    def read(
        cls, raws: Sequence[Raw], memo: "Memo[RequestTools]", served: frozenset[str] = frozenset()
    ) -> "RequestTools":
        """The request's own tools, to which others may be added. Raises Invalid."""

        def read(_: bytes) -> RequestTools:
            tools = cls({}, {}, [], set(), served)
            if TOOL_SEARCH in served and _has_server_search(raws):
                tools.search = TOOL_SEARCH
            tools._add_list(raws, "tools", ToolSource(unique=True))
            tools._add_search()
            tools.settled_specs = tools.final_specs()
            return tools

        shared = memo.get(b",".join(raws), read)
        return replace(
            shared,
            specs=shared.specs.copy(),
            names=shared.names.copy(),
            dropped=shared.dropped.copy(),
            search_results=shared.search_results.copy(),
            aliases=shared.aliases.copy(),
            namespaces=shared.namespaces.copy(),
        )

    def add(self, raws: Iterable[Raw], list_path: str, *, from_search: bool = False) -> list[str]:
        """Adds tools of an item, and returns their rendered names. Raises Invalid.

        `from_search`: a search found them.
        """
        self.settled_specs = None
        return self._add_list(raws, list_path, ToolSource(from_search=from_search))

    def runs(self, name: str) -> bool:
        """Whether this server runs the tool."""
        return name in self.specs and self.specs[name].hosted is not None

    def shown(self, call: Call) -> Call:
        """A call under the name that the model sees, if that is an alias. OpenAI's servers put a
        function that a search found into a namespace of its own name."""
        if call.namespace == call.name:
            is_known = rendered_name(call.name, call.namespace) in self.specs
            if call.name in self.specs and not is_known:
                return replace(call, namespace=None)
        alias = self.aliases.get((call.name, call.namespace))
        return call if alias is None else replace(call, name=alias, namespace=None)

    def rendered_name(self, name: str, namespace: str | None) -> str:
        """The one name under which the model sees a tool."""
        return self.aliases.get((name, namespace)) or rendered_name(name, namespace)

    def final_specs(self) -> list[ToolSpec]:
        """The tools for the prompt. Without a search nothing could load a deferred tool, so none is
        deferred."""
        if self.settled_specs is not None:
            return self.settled_specs
        specs = list(self.specs.values())
        if self.client_searches or self.search is not None:
            return specs
        for index, (name, spec) in enumerate(self.specs.items()):
            if spec.deferred and name not in self.search_results:
                specs[index] = replace(spec, deferred=False)
        return specs

    def _add_list(self, raws: Iterable[Raw], list_path: str, source: ToolSource) -> list[str]:
        rendered: list[str] = []
        for index, raw in enumerate(raws):
            field_path = f"{list_path}[{index}]"
            kind = convert(wire.ToolType, raw, field_path).type
            if kind in _SERVED:
                added = self._add(convert(wire.ResponsesTool, raw, field_path), field_path, source)
                rendered += added
                if added and kind != "namespace":
                    source = self._describe(added[0], raw, source)
            elif kind in WEB_SEARCH_TYPES and WEB_SEARCH in self.served:
                self._add_web_search(convert(wire.ResponsesTool, raw, field_path))
            else:  # only the type is decoded
                self.dropped.append(kind)
        return rendered

    def _describe(self, rendered: str, raw: Raw, source: ToolSource) -> ToolSource:
        """Keeps the definition of a tool that was added, if a search may find it. Returns the
        source of the tools that follow."""
        if not self._is_hidden(self.specs[rendered]):
            return replace(source, is_described=True)
        name = self.names[rendered]
        if name.definition is None:
            self.names[rendered] = replace(name, definition=one_line(raw))
        if source.namespace is not None:
            self.namespaces.setdefault(source.namespace, source.about)
        return source

    def _is_hidden(self, spec: ToolSpec) -> bool:
        """Whether only a search of this server shows a tool."""
        return spec.deferred and self.search is not None

    def _add_search(self) -> None:
        """Adds this server's search, last, where its description has all namespaces."""
        if self.search is None:
            return
        if self._is_taken(self.search):
            self.search = self._unused_name(self.search)
        self.specs[self.search] = tool_search_spec(self.search, self.namespaces)
        self.names[self.search] = ToolName("tool_search", self.search)

    def _add(self, tool: wire.ResponsesTool, field_path: str, source: ToolSource) -> list[str]:
        """Adds a tool of a type in `_SERVED`, and returns its rendered name, or its tools'."""
        match tool.type:
            case "function":
                return self._offer("function", function_spec(tool, field_path), field_path, source)
            case "custom":
                spec = freeform_spec(tool, field_path, self.grammars)
                if spec.grammar is not None:
                    self.grammars += 1
                return self._offer("custom", spec, field_path, source)
            case "namespace" if source.namespace is None:
                return self._add_namespace(tool, field_path, source)
            case "tool_search":
                if tool.execution != "client":
                    return []
                self.client_searches = True
                return self._offer("tool_search", built_in_spec(tool), field_path, source)
            case "local_shell" | "shell" | "apply_patch" as kind if _runs_here(tool):
                return self._offer(kind, built_in_spec(tool), field_path, source)
        self.dropped.append(tool.type)
        return []

    def _add_namespace(
        self, tool: wire.ResponsesTool, field_path: str, source: ToolSource
    ) -> list[str]:
        name = name_of(tool, field_path)
        inside = replace(source, namespace=name, about=tool.description or "")
        return self._add_list(tool.tools or [], f"{field_path}.tools", inside)

    def _add_web_search(self, tool: wire.ResponsesTool) -> None:
        specs = web_search_specs(tool, self.served)
        if not specs:
            self.dropped.append(tool.type)
        for spec in specs:
            self.specs.setdefault(spec.name, spec)
            self.names.setdefault(spec.name, ToolName("web_search", spec.name))

    def _offer(
        self, kind: CallKind, spec: ToolSpec, field_path: str, source: ToolSource
    ) -> list[str]:
        """Adds a tool that the client runs, and returns its rendered name. Raises Invalid."""
        if source.about and not source.is_described and not self._is_hidden(spec):
            about = f"{source.namespace}: {source.about}"
            description = "\n\n".join(filter(None, (about, spec.description)))
            spec = replace(spec, description=description)
        if source.namespace is not None:
            spec = replace(spec, namespace=source.namespace)
        rendered = self.rendered_name(spec.name, spec.namespace)
        if self._has(rendered, spec):
            if source.unique:
                message = f"Tool names must be unique: '{rendered}'."
                raise Invalid(message, param=f"{field_path}.name", code="invalid_value")
            return [rendered]
        name = ToolName(kind, spec.name, spec.namespace)
        if self._is_taken(rendered):
            rendered = self._unused_name(rendered)
            name = replace(name, alias=rendered)
            self.aliases[spec.name, spec.namespace] = rendered
            spec = replace(spec, name=rendered, namespace=None)
        if source.from_search:
            spec = replace(spec, deferred=True)
            self.search_results.add(rendered)
        self.specs[rendered] = spec
        self.names[rendered] = name
        return [rendered]

    def _has(self, rendered: str, spec: ToolSpec) -> bool:
        """Whether the client's tools have one of this name and namespace."""
        if not self._is_taken(rendered):
            return False
        known = self.names[rendered]
        return (known.name, known.namespace) == (spec.name, spec.namespace)

    def _is_taken(self, rendered: str) -> bool:
        """Whether a tool of the client has this name; one that this server runs gives way."""
        return rendered in self.specs and not self.runs(rendered)

    def _unused_name(self, rendered: str) -> str:
        number = 2
        while self._is_taken(f"{rendered}_{number}"):
            number += 1
        return f"{rendered}_{number}"


def _has_server_search(raws: Iterable[Raw]) -> bool:
    """Whether tools have a search that the server runs. Raises Invalid."""
    for index, raw in enumerate(raws):
        tool = convert(wire.ToolType, raw, f"tools[{index}]")
        if tool.type == TOOL_SEARCH and tool.execution != "client":
            return True
    return False


def _runs_here(tool: wire.ResponsesTool) -> bool:
    """Whether the client runs a shell; one in a container runs on OpenAI's machines."""
    return tool.environment is None or tool.environment.type == "local"
