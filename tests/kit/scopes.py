"""A scope that keeps its spans."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from services.runtime.observability.scope import Attributes, Scope


class RecordedScope(Scope):
    """A span, with its children in the order in which they began."""

    def __init__(self, name: str = "parent", attributes: Attributes | None = None) -> None:
        self.name = name
        self.attributes: dict[str, Any] = dict(attributes or {})
        self.events: list[str] = []
        self.children: list[RecordedScope] = []
        self.ends = 0
        self.error: str | None = None
        self.after: Scope | None = None

    @property
    def names(self) -> list[str]:
        return [child.name for child in self.children]

    @property
    @override
    def carrier(self) -> dict[str, str]:
        return {"traceparent": self.name}

    @override
    def record(
        self,
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        events: Sequence[tuple[str, int, Attributes]] = (),
    ) -> None:
        assert 0 < start <= end
        child = self.open(name, start, attributes)
        child.events = [event for event, _, _ in events]
        child.end(end, error=error)

    @override
    def open(
        self,
        name: str,
        start: int,
        attributes: Attributes,
        *,
        after: Scope | None = None,
        server: bool = False,
    ) -> "RecordedScope":
        child = RecordedScope(name, attributes)
        child.after = after
        self.children.append(child)
        return child

    @override
    def event(self, name: str, at: int, attributes: Attributes) -> None:
        self.events.append(name)

    @override
    def set(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    @override
    def end(self, at: int, *, error: str | None = None) -> None:
        self.ends += 1
        self.error = error
