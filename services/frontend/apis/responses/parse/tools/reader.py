"""Reads the tools of a Responses request.

Functions and freeform tools pass through, also those in a namespace. Searches of deferred tools are
served, `web_search` where the operator has a provider. Other tools that OpenAI's servers run are
left out, and named in the notes and to the model: Codex sends `web_search` with every request, and
a 400 would end its session.
"""

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.responses.parse.tools.request_tools import CallKind, RequestTools
from services.frontend.apis.responses.parse.tools.specs import (
    BUILT_IN,
    TOOL_SEARCH,
    WEB_SEARCH,
    WEB_SEARCH_TYPES,
    built_in_spec,
    freeform_spec,
    function_spec,
    name_of,
    web_search_specs,
)
from services.frontend.apis.shared.decode import one_line
from services.runtime.caches.memo import Memo

_SERVED = frozenset({"function", "custom", "namespace", *BUILT_IN})


def read_tools(
    raws: Sequence[Raw], memo: Memo[RequestTools], served: frozenset[str] = frozenset()
) -> RequestTools:
    """The request's own tools, to which others may be added. Raises Invalid.

    `memo`: has the tools of earlier requests; `served`: the kinds of hosted tools that this server
    runs.
    """
    shared = memo.get(b",".join(raws), lambda _: _read_list(raws, served))
    return shared.copy()


def add_tools(
    tools: RequestTools, raws: Iterable[Raw], list_path: str, *, from_search: bool = False
) -> list[str]:
    """Adds tools of an item, and returns their rendered names. Raises Invalid.

    `from_search`: a search found them.
    """
    tools.settled_specs = None
    return ToolReader(tools).read(raws, list_path, ToolSource(from_search=from_search))


def _read_list(raws: Sequence[Raw], served: frozenset[str]) -> RequestTools:
    tools = RequestTools({}, {}, [], set(), served)
    if TOOL_SEARCH in served and _has_server_search(raws):
        tools.search = TOOL_SEARCH
    ToolReader(tools).read(raws, "tools", ToolSource(unique=True))
    tools.insert_search()
    tools.settled_specs = tools.final_specs()
    return tools


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


class ToolReader:
    """Adds the tools of lists to those of a request."""

    def __init__(self, tools: RequestTools) -> None:
        self._tools = tools

    def read(self, raws: Iterable[Raw], list_path: str, source: ToolSource) -> list[str]:
        """Adds the tools of a list, and returns their rendered names. Raises Invalid."""
        rendered: list[str] = []
        for index, raw in enumerate(raws):
            field_path = f"{list_path}[{index}]"
            kind = convert(wire.ToolType, raw, field_path).type
            if kind in _SERVED:
                added = self._read(convert(wire.ResponsesTool, raw, field_path), field_path, source)
                rendered += added
                if added and kind != "namespace":
                    source = self._describe(added[0], raw, source)
            elif kind in WEB_SEARCH_TYPES and WEB_SEARCH in self._tools.served:
                self._read_web_search(convert(wire.ResponsesTool, raw, field_path))
            else:  # only the type is decoded
                self._tools.dropped.append(kind)
        return rendered

    def _read(self, tool: wire.ResponsesTool, field_path: str, source: ToolSource) -> list[str]:
        """Adds a tool of a type in `_SERVED`, and returns its rendered name, or its tools'."""
        tools = self._tools
        match tool.type:
            case "function":
                return self._offer("function", function_spec(tool, field_path), field_path, source)
            case "custom":
                spec = freeform_spec(tool, field_path, tools.grammars)
                if spec.grammar is not None:
                    tools.grammars += 1
                return self._offer("custom", spec, field_path, source)
            case "namespace" if source.namespace is None:
                return self._read_namespace(tool, field_path, source)
            case "tool_search":
                if tool.execution != "client":
                    return []
                tools.client_searches = True
                return self._offer("tool_search", built_in_spec(tool), field_path, source)
            case "local_shell" | "shell" | "apply_patch" as kind if _runs_here(tool):
                return self._offer(kind, built_in_spec(tool), field_path, source)
        tools.dropped.append(tool.type)
        return []

    def _read_namespace(
        self, tool: wire.ResponsesTool, field_path: str, source: ToolSource
    ) -> list[str]:
        name = name_of(tool, field_path)
        inside = replace(source, namespace=name, about=tool.description or "")
        return self.read(tool.tools or [], f"{field_path}.tools", inside)

    def _read_web_search(self, tool: wire.ResponsesTool) -> None:
        specs = web_search_specs(tool, self._tools.served)
        if not specs:
            self._tools.dropped.append(tool.type)
        for spec in specs:
            self._tools.insert_hosted(spec)

    def _offer(
        self, kind: CallKind, spec: ToolSpec, field_path: str, source: ToolSource
    ) -> list[str]:
        """Adds a tool that the client runs, and returns its rendered name. Raises Invalid."""
        if source.about and not source.is_described and not self._tools.is_hidden(spec):
            about = f"{source.namespace}: {source.about}"
            description = "\n\n".join(filter(None, (about, spec.description)))
            spec = replace(spec, description=description)
        if source.namespace is not None:
            spec = replace(spec, namespace=source.namespace)

        earlier = self._tools.find(spec)
        if earlier is None:
            return [self._tools.insert(kind, spec, from_search=source.from_search)]
        if source.unique:
            message = f"Tool names must be unique: '{earlier}'."
            raise Invalid(message, param=f"{field_path}.name", code="invalid_value")
        return [earlier]

    def _describe(self, rendered: str, raw: Raw, source: ToolSource) -> ToolSource:
        """Keeps the definition of a tool that was added, if a search may find it. Returns the
        source of the tools that follow."""
        tools = self._tools
        if not tools.is_hidden(tools.specs[rendered]):
            return replace(source, is_described=True)
        tools.keep_definition(rendered, one_line(raw))
        if source.namespace is not None:
            tools.namespaces.setdefault(source.namespace, source.about)
        return source


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
