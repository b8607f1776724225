"""Writes the grammar rules of the arguments of a call in notations of families' own."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from schemas.conversation import ToolSpec
from services.guides.outline import outlined_tool
from services.guides.tool_schemas import CUSTOM_SCHEMA, known_formats
from services.guides.values import GemmaValues, NestedValues, Place, PythonValues
from services.guides.writer import Unguidable


class _Arguments:
    """Arguments by the schema of their tool, or any. `lost` collects the promises that cannot be
    kept."""

    def __init__(self, lost: list[str]) -> None:
        self._lost = lost

    def rule(self, tool: ToolSpec) -> str:
        """The arguments of a tool."""
        if tool.grammar is not None:
            self._lost.append(f"grammar {tool.name}")
        if tool.kind == "custom":
            return self.of(CUSTOM_SCHEMA)
        if tool.strict:
            try:
                return self.of(known_formats(tool.schema))
            except Unguidable:
                self._lost.append(f"strict {tool.name}")
        return self.free(tool)

    def of(self, schema: Mapping[str, Any]) -> str:
        """The arguments of a schema. Raises Unguidable."""
        raise NotImplementedError

    def free(self, tool: ToolSpec) -> str:
        """Any arguments."""
        raise NotImplementedError


class PythonArguments(_Arguments):
    """Keyword arguments."""

    def __init__(self, values: PythonValues, lost: list[str]) -> None:
        super().__init__(lost)
        self._values = values

    @override
    def of(self, schema: Mapping[str, Any]) -> str:
        place = Place(schema)
        required = schema.get("required", [])
        keyword = self._values.keyword
        return self._values.in_order(
            [
                (keyword(key, self._values.value(value, place)), key in required)
                for key, value in schema.get("properties", {}).items()
            ]
        )

    @override
    def free(self, tool: ToolSpec) -> str:
        values = self._values
        key = values.writer.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}=/")
        return values.repeated(values.writer.rule(f"{key} {values.any_value()}"))


class GemmaArguments(_Arguments):
    """An object of Gemma's."""

    def __init__(self, values: GemmaValues, lost: list[str]) -> None:
        super().__init__(lost)
        self._values = values

    @override
    def of(self, schema: Mapping[str, Any]) -> str:
        return self._values.members(schema, Place(schema))

    @override
    def free(self, tool: ToolSpec) -> str:
        return self._values.any_object(None, Place({}))


class NestedArguments(_Arguments):
    """Elements. Their types are those of the schema in any case, because the parser reads them by
    that."""

    def __init__(self, values: NestedValues, lost: list[str]) -> None:
        super().__init__(lost)
        self._values = values

    @override
    def of(self, schema: Mapping[str, Any]) -> str:
        return self._values.members(schema, Place(schema)) if schema.get("properties") else ""

    @override
    def free(self, tool: ToolSpec) -> str:
        outline = outlined_tool(tool, quoted=False).schema
        place = Place(outline)
        elements: list[str] = []
        for key, value in outline.get("properties", {}).items():
            try:
                elements.append(self._values.member(key, value, place))
            except Unguidable:
                continue
        return f"{self._values.writer.choice(elements)}*" if elements else ""
