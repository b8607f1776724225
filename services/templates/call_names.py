"""Tool names and call ids of a conversation, as its chat template receives them."""

from collections.abc import Iterable

from msgspec import Struct

from schemas.conversation import Call, Turn
from services.templates.tools import tool_name
from services.templates.traits import TemplateTraits


class CallNames(Struct, frozen=True):
    """Names and ids of the calls of a conversation."""

    names: dict[str, str]
    """Tool names by call id. Of two calls with the same id the later counts, for all results."""
    ids: dict[str, str]
    """The template's ids by call id, where they are not the client's: those that the model wrote, else by position."""

    @classmethod
    def of(cls, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames":
        """The calls of all turns of a conversation."""
        names: dict[str, str] = {}
        ids: dict[str, str] = {}
        calls = (part for turn in turns for part in turn.parts if isinstance(part, Call))
        for number, call in enumerate(calls):
            name = names[call.call_id] = tool_name(call.name, call.namespace)
            if traits.call_ids == "short":
                ids[call.call_id] = f"{number:09d}"
            elif call.original_id:
                ids[call.call_id] = call.original_id
            elif traits.call_ids == "counted":
                ids[call.call_id] = f"functions.{name}:{number}"
        return cls(names, ids)
