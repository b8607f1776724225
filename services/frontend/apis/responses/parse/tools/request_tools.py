"""The tools of a Responses request, by the names that the model sees."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.conversation import Call, ToolSpec, rendered_name
from services.frontend.apis.responses.parse.tools.specs import tool_search_spec

CallKind: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "web_search"
]


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
    """The number of tools with a grammar that were read: it is limited."""
    aliases: dict[tuple[str, str | None], str] = {}
    """The aliases of tools by name and namespace."""
    settled_specs: list[ToolSpec] | None = None
    """The result of `final_specs`; None after a change."""

    def copy(self) -> "RequestTools":
        """Returns tools to which others can be added."""
        return replace(
            self,
            specs=self.specs.copy(),
            names=self.names.copy(),
            dropped=self.dropped.copy(),
            search_results=self.search_results.copy(),
            aliases=self.aliases.copy(),
            namespaces=self.namespaces.copy(),
        )

    def runs(self, name: str) -> bool:
        """Whether this server runs the tool."""
        return name in self.specs and self.specs[name].hosted is not None

    def shown(self, call: Call) -> Call:
        """A call under the name that the model sees, if that is an alias. OpenAI's servers put a
        function that a search found into a namespace of its own name."""
        if call.namespace == call.name:
            is_known = call.rendered_name in self.specs
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

    def is_hidden(self, spec: ToolSpec) -> bool:
        """Whether only a search of this server shows a tool."""
        return spec.deferred and self.search is not None

    def find(self, spec: ToolSpec) -> str | None:
        """The rendered name of the client's tool with this name and namespace; None if there is
        none yet."""
        rendered = self.rendered_name(spec.name, spec.namespace)
        if not self._is_taken(rendered):
            return None
        name = self.names[rendered]
        is_same = (name.name, name.namespace) == (spec.name, spec.namespace)
        return rendered if is_same else None

    def insert(self, kind: CallKind, spec: ToolSpec, *, from_search: bool) -> str:
        """Adds a tool that the client runs, and returns its rendered name: an alias if another tool
        has the usual one."""
        rendered = self.rendered_name(spec.name, spec.namespace)
        name = ToolName(kind, spec.name, spec.namespace)
        if self._is_taken(rendered):
            rendered = self._unused_name(rendered)
            name = replace(name, alias=rendered)
            self.aliases[spec.name, spec.namespace] = rendered
            spec = replace(spec, name=rendered, namespace=None)
        if from_search:
            spec = replace(spec, deferred=True)
            self.search_results.add(rendered)
        self.specs[rendered] = spec
        self.names[rendered] = name
        return rendered

    def insert_hosted(self, spec: ToolSpec) -> None:
        """Adds a tool of the web, unless another tool has its name."""
        self.specs.setdefault(spec.name, spec)
        self.names.setdefault(spec.name, ToolName("web_search", spec.name))

    def insert_search(self) -> None:
        """Adds this server's search, last, where its description has all namespaces."""
        if self.search is None:
            return
        if self._is_taken(self.search):
            self.search = self._unused_name(self.search)
        self.specs[self.search] = tool_search_spec(self.search, self.namespaces)
        self.names[self.search] = ToolName("tool_search", self.search)

    def keep_definition(self, rendered: str, definition: Raw) -> None:
        """Keeps the definition of a tool, for the results of a search."""
        name = self.names[rendered]
        if name.definition is None:
            self.names[rendered] = replace(name, definition=definition)

    def _is_taken(self, rendered: str) -> bool:
        """Whether a tool of the client has this name; one that this server runs gives way."""
        return rendered in self.specs and not self.runs(rendered)

    def _unused_name(self, rendered: str) -> str:
        number = 2
        while self._is_taken(f"{rendered}_{number}"):
            number += 1
        return f"{rendered}_{number}"
