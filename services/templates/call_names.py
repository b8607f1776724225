"""Tool names and call ids of a conversation, as its chat template receives them."""

from collections.abc import Iterable

from msgspec import Struct

from schemas.conversation import Call, Result, Turn
from services.templates.tools import tool_name
from services.templates.traits import TemplateTraits


class CallNames(Struct, frozen=True):
    """Names and ids of the calls in some turns."""

    names: dict[str, str] = {}
    """Tool names by call id. Of two calls with the same id the later counts, for all results."""
    ids: dict[str, str] = {}
    """The template's ids by call id, where they are not the client's: those that the model wrote, else by position."""
    count: int = 0
    strays: frozenset[str] = frozenset()
    """Ids of results without a call."""

    @classmethod
    def of(cls, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames":
        """The calls of a whole conversation."""
        return cls()._with(turns, traits)

    def grown(self, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames | None":
        """Adds the turns that follow. None where they change the name or id of an earlier call or result."""
        more = self._with(turns, traits)
        repeated_id = more.count - self.count != len(more.names) - len(self.names)
        called_late = any(stray in more.names for stray in self.strays) or (
            self.strays and not self.names and more.names
        )
        return None if repeated_id or called_late else more

    def _with(self, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames":
        names, ids, count, results = dict(self.names), dict(self.ids), self.count, set(self.strays)
        for turn in turns:
            for part in turn.parts:
                if isinstance(part, Call):
                    name = names[part.call_id] = tool_name(part.name, part.namespace)
                    if traits.call_ids == "short":
                        ids[part.call_id] = f"{count:09d}"
                    elif part.original_id:
                        ids[part.call_id] = part.original_id
                    elif traits.call_ids == "counted":
                        ids[part.call_id] = f"functions.{name}:{count}"
                    count += 1
                elif isinstance(part, Result):
                    results.add(part.call_id)
        return CallNames(names, ids, count, frozenset(result for result in results if result not in names))
