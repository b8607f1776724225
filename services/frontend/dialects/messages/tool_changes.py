"""Tools that a conversation adds and withdraws on its way (apis.md A.3: `tool_addition`, `tool_removal`).

The model is told of a change where it happens. The tool list at the front of the prompt stays as it was, and with it
the prompt of every turn so far: what is cached of it holds.
"""

import json
from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from schemas.conversation import Text, ToolSpec
from services.frontend.dialects.messages import tools, wire

Change: TypeAlias = wire.ToolAdditionBlock | wire.ToolRemovalBlock


class ToolSet:
    """The tools of one request."""

    def __init__(self, specs: list[ToolSpec]) -> None:
        self._declared = specs
        self._withdrawn: set[str] = set()
        self.specs = specs
        """All that the prompt tells of, in the list at its front or further on."""

    @property
    def offered(self) -> list[ToolSpec]:
        """Those that may be called at the end of the conversation."""
        return [spec for spec in self.specs if spec.name not in self._withdrawn]

    def change(self, block: Change, path: str) -> list[Text]:
        """What the model is told of a change, in its place. Raises Invalid for a definition that is none.

        Of a tool that nobody knows, nothing: it may be one of an MCP server, or of a session that goes on without it.
        """
        spec = self._changed(block, path)
        if spec is None:
            return []
        if isinstance(block, wire.ToolRemovalBlock):
            self._withdrawn.add(spec.name)
            return [Text(f"From here on the tool `{spec.name}` is not available any more.")]
        if not any(not known.deferred for known in self.specs):
            # Without a list at the front the model has not been told how to call anything at all.
            self._put(replace(spec, deferred=False))
            return []
        known = not spec.deferred and spec.name not in self._withdrawn
        self._withdrawn.discard(spec.name)
        return [] if known else [Text(f"From here on this tool is available, too:\n{_definition(spec)}")]

    def compact(self, changes: Sequence[Change], path: str) -> None:
        """What stood before is gone, and with it what was told there: the list at the front is made anew, of the
        request's tools and the changes which the compaction carries. Raises Invalid."""
        self.specs = self._declared
        self._withdrawn.clear()
        for index, block in enumerate(changes):
            spec = self._changed(block, f"{path}.tool_changes.{index}")
            if spec is not None and isinstance(block, wire.ToolAdditionBlock):
                self._put(replace(spec, deferred=False))
            elif spec is not None:
                self.specs = [known for known in self.specs if known.name != spec.name]

    def _changed(self, block: Change, path: str) -> ToolSpec | None:
        changed = block.tool
        if isinstance(changed, wire.ToolDefinition):
            if (changed.definition.type or tools.CUSTOM).startswith(tools.HOSTED):
                return None
            spec = replace(tools.spec(changed.definition, f"{path}.tool.definition"), deferred=True)
            self._put(spec)
            return spec
        if isinstance(changed, wire.NamedTool):
            return next((spec for spec in self.specs if spec.name == changed.name), None)
        return None

    def _put(self, spec: ToolSpec) -> None:
        names = [known.name for known in self.specs]
        if spec.name in names:
            self.specs = [spec if known.name == spec.name else known for known in self.specs]
        else:
            self.specs = [*self.specs, spec]


def _definition(spec: ToolSpec) -> str:
    """In the form in which templates list tools."""
    schema = spec.schema or {"type": "object", "properties": {}}
    function = {"name": spec.name, "description": spec.description, "parameters": schema}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)
