"""Tools in the forms in which the stages read them, made once for all requests of a session.

`RequestDecoder` gives equal lists as one object: by that they are known here.
"""

import threading
from collections import OrderedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.parser.tool_types import bare
from services.preprocessor.jinja_template import spelled
from services.preprocessor.template import Tool
from services.preprocessor.wording import list_tools, tool_definition

KEPT = 32
"""Lists that are kept at most: as many as `RequestDecoder` keeps."""
_encode = msgspec.json.Encoder().encode


class ToolList(Struct, frozen=True, eq=False):
    """The tools of a conversation."""

    specs: list[ToolSpec]
    told: list[ToolSpec]
    """Under the names and with the schemas that the model is told, deferred ones included."""
    shown: list[Tool]
    """Those at the front of the prompt, as chat templates read them."""
    parsed: bytes
    """`told` as JSON, for parsers."""


NO_TOOLS = ToolList([], [], [], b"[]")


class ToolLists:
    """Lists by identity. Thread-safe; what was used least lately goes first."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[ToolList, bool]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, specs: list[ToolSpec]) -> ToolList:
        """All forms of these tools. The list must not change afterwards."""
        if not specs:
            return NO_TOOLS
        with self._lock:
            found, settled = self._known.get(id(specs), (NO_TOOLS, False))
            if found.specs is specs:  # kept alive by the entry, so that no other list has its id
                self._known.move_to_end(id(specs))
                if settled:
                    return found
        again = found.specs is specs
        made = _settled(found) if again else _made(specs)  # a list that never comes again is not worth more
        with self._lock:
            self._known[id(specs)] = (made, again)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return made


def _made(specs: list[ToolSpec]) -> ToolList:
    told = [_as_told(tool) for tool in specs]
    return ToolList(specs, told, list_tools(specs), _encode(told))


def _settled(tools: ToolList) -> ToolList:
    try:
        return ToolList(tools.specs, tools.told, spelled(tools.shown), _encode(bare(tools.told)))
    except RecursionError:  # nested deeper than Python's own functions go, though not than its encoders
        return tools


def _as_told(tool: ToolSpec) -> ToolSpec:
    told = tool_definition(tool)["function"]
    return replace(tool, name=told["name"], schema=told["parameters"], namespace=None)
