"""Keeps the definitions of deferred tools as the client wrote them, for the searches of this
server."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Raw, Struct

from services.frontend.apis.shared.decode import one_line


class DeferredTool(Struct, frozen=True):
    """A tool that a search may find."""

    definition: Raw
    namespace: str | None = None


class DeferredTools(Struct):
    """The deferred tools of a request, by their rendered names."""

    tools: dict[str, DeferredTool] = {}
    descriptions: dict[str, str] = {}
    """The descriptions of namespaces, by name."""

    def copy(self) -> "DeferredTools":
        """Returns a copy, to which tools may be added."""
        return DeferredTools(self.tools.copy(), self.descriptions.copy())

    def add(self, rendered: str, definition: Raw, namespace: str | None, about: str) -> None:
        """Adds a tool. `about`: the description of its namespace."""
        self.tools.setdefault(rendered, DeferredTool(one_line(definition), namespace))
        if namespace is not None:
            self.descriptions.setdefault(namespace, about)

    @property
    def overview(self) -> str:
        """The namespaces with their descriptions, for the description of the search: what the model
        knows before it searches. Empty if there are none."""
        lines = [
            f"- {name}: {about}" if about else f"- {name}"
            for name, about in self.descriptions.items()
        ]
        return "\n".join(["Their namespaces:", *lines]) if lines else ""

    def definitions(self, names: Iterable[str]) -> list[Raw | dict[str, Any]]:
        """Returns the definitions of tools by their rendered names, in this order. Neighbours of
        one namespace are in one object, as clients define them."""
        found: list[Raw | dict[str, Any]] = []
        tools = (self.tools[name] for name in names)
        for namespace, group in groupby(tools, attrgetter("namespace")):
            definitions = [tool.definition for tool in group]
            if namespace is None:
                found += definitions
            else:
                found.append(
                    {
                        "type": "namespace",
                        "name": namespace,
                        "description": self.descriptions[namespace],
                        "tools": definitions,
                    }
                )
        return found
