"""Renders the output items of searches of tools that this server runs: a call, and then its
result."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.events import BlockStop, HostedResult
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.render.items.built_in import object_on_one_line
from services.frontend.apis.responses.render.items.open_item import (
    ItemPlace,
    OpenItem,
    ResponsesShape,
)

_NOTHING = Raw(b"{}")


class OpenToolSearch(OpenItem):
    """A search of tools, which ends with its block."""

    def __init__(self, place: ItemPlace) -> None:
        super().__init__("tsc", place)

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        if not stop.complete:
            return None
        item = wire_answers.OutputToolSearchCall(
            id=self.id,
            status="completed",
            call_id=None,
            arguments=self._arguments(),
            execution="server",
        )
        out.append(self._added(replace(item, status="in_progress", arguments=_NOTHING)))
        return self._done(item, out)

    def _arguments(self) -> Raw:
        try:
            return object_on_one_line(self.text)
        except (msgspec.DecodeError, RecursionError):
            return _NOTHING


def search_output(place: ItemPlace, result: HostedResult) -> wire_answers.OutputToolSearchOutput:
    """The item of a result. The API has no errors of searches: one that failed is incomplete."""
    return wire_answers.OutputToolSearchOutput(
        id=place.item_id("tso"),
        status="incomplete" if result.error else "completed",
        tools=_definitions(result.tools, place.shape),
    )


def _definitions(names: Iterable[str], shape: ResponsesShape) -> list[Raw]:
    """The definitions of tools by their rendered names, in this order. Neighbours of one namespace
    are in one object, as clients define them."""
    definitions: list[Raw] = []
    tools = (shape.names[name] for name in names)
    for namespace, group in groupby(tools, attrgetter("namespace")):
        of_group = [tool.definition for tool in group if tool.definition is not None]
        if namespace is None:
            definitions += of_group
            continue
        in_namespace = {
            "type": "namespace",
            "name": namespace,
            "description": shape.namespaces[namespace],
            "tools": of_group,
        }
        definitions.append(Raw(msgspec.json.encode(in_namespace)))
    return definitions
