"""JSON schemas (2020-12, as OpenAPI 3.1 has them) of msgspec types.

msgspec's own generator cannot write a default that is `Raw`, and names types of one name by their modules' paths.
"""

import inspect
from types import MappingProxyType
from typing import Any

from msgspec import inspect as mi

REF = "#/components/schemas/"
_BOUNDS = MappingProxyType(
    {
        "ge": "minimum",
        "gt": "exclusiveMinimum",
        "le": "maximum",
        "lt": "exclusiveMaximum",
        "min_length": "minLength",
        "max_length": "maxLength",
        "pattern": "pattern",
    }
)
_PLAIN: MappingProxyType[type[mi.Type], dict[str, Any]] = MappingProxyType(
    {
        mi.AnyType: {},
        mi.RawType: {},
        mi.NoneType: {"type": "null"},
        mi.BoolType: {"type": "boolean"},
        mi.IntType: {"type": "integer"},
        mi.FloatType: {"type": "number"},
        mi.StrType: {"type": "string"},
        mi.BytesType: {"type": "string", "contentEncoding": "base64"},
    }
)


class Schemas:
    """Collects the schemas of Structs under names that tell their API: `MessagesBody`, `ChatTool`."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type; that of a Struct is a reference into `components`. Raises TypeError."""
        return self._schema(mi.type_info(kind))

    def _schema(self, info: mi.Type) -> dict[str, Any]:
        if isinstance(info, mi.Metadata):
            return self._schema(info.type)
        if isinstance(info, mi.StructType):
            return self._struct(info)
        if isinstance(info, mi.UnionType):
            return {"anyOf": [self._schema(member) for member in info.types]}
        if isinstance(info, mi.ListType):
            return {"type": "array", "items": self._schema(info.item_type)}
        if isinstance(info, mi.DictType):
            return {"type": "object", "additionalProperties": self._schema(info.value_type)}
        if isinstance(info, mi.LiteralType):
            return {"enum": list(info.values)}
        plain = _PLAIN.get(type(info))
        if plain is None:
            raise TypeError(f"no schema for {info}")
        bounds = {name: getattr(info, bound, None) for bound, name in _BOUNDS.items()}
        return {**plain, **{name: value for name, value in bounds.items() if value is not None}}

    def _struct(self, info: mi.StructType) -> dict[str, Any]:
        name = self._names.get(info.cls)
        if name is None:
            name = self._names[info.cls] = self._name(info.cls)
            self.components[name] = {}  # its place, for a type that holds itself
            self.components[name] |= self._object(info)
        return {"$ref": REF + name}

    def _object(self, info: mi.StructType) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        if info.tag_field is not None:
            properties[info.tag_field] = {"const": info.tag}
            required.append(info.tag_field)
        for field in info.fields:
            properties[field.encode_name] = {**self._schema(field.type), **_default(field)}
            if field.required:
                required.append(field.encode_name)
        return {
            "type": "object",
            "description": _sentence(info.cls),
            "properties": properties,
            **({"required": required} if required else {}),
        }

    def _name(self, cls: type) -> str:
        name = _api_of(cls.__module__) + cls.__name__.lstrip("_")
        if name in self.components:
            raise TypeError(f"two types are named {name}")
        return name


def _default(field: mi.Field) -> dict[str, Any]:
    """A default worth telling: null and emptiness say nothing that `required` does not."""
    if isinstance(field.default, bool | int | float | str) and field.default != "":
        return {"default": field.default}
    return {}


def _sentence(cls: type) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _api_of(module: str) -> str:
    _, found, rest = module.partition(".dialects.")
    return rest.partition(".")[0].capitalize() if found and "." in rest else ""
