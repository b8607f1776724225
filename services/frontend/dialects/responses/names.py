"""The one name under which the model knows a tool, and back: what a call of that name is in this API."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

CallKind: TypeAlias = Literal["function", "custom", "tool_search", "local_shell", "shell", "apply_patch"]


class Named(Struct, frozen=True):
    """A tool of the request."""

    kind: CallKind
    name: str
    namespace: str | None = None

    @property
    def told(self) -> str:
        """As the model is told: `namespace__name` (`services.preprocessor.wording.tool_name`)."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


class Names:
    """The tools of a request by the names that the model was told."""

    __slots__ = ("_by_told",)

    def __init__(self, tools: Iterable[Named] = ()) -> None:
        self._by_told = {tool.told: tool for tool in tools}

    def of(self, told: str) -> Named:
        """The tool of this name; one that nobody offered is a function of that name."""
        return self._by_told.get(told) or Named("function", told)
