"""The calls of a conversation: under which names and ids a template is told of them and of their results."""

from collections.abc import Iterable

from msgspec import Struct

from schemas.conversation import Call, Result, Turn
from services.preprocessor.traits import TemplateTraits
from services.preprocessor.wording import tool_name


class CallNames(Struct, frozen=True):
    """What is known of the calls in some turns."""

    names: dict[str, str] = {}
    """Tool names by call id. Of two calls with one id the later counts, for all results."""
    ids: dict[str, str] = {}
    """The ids that the template is told, where they follow from the position: the same for every client and replay."""
    count: int = 0
    strays: frozenset[str] = frozenset()
    """Ids of results whose call is not there."""

    @classmethod
    def of(cls, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames":
        """Of a whole conversation."""
        return cls()._with(turns, traits)

    def grown(self, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames | None":
        """With the turns that follow; None where those say something else of the calls and results so far."""
        more = self._with(turns, traits)
        told_anew = more.count - self.count != len(more.names) - len(self.names)
        called_late = any(stray in more.names for stray in self.strays) or (
            self.strays and not self.names and more.names
        )
        return None if told_anew or called_late else more

    def _with(self, turns: Iterable[Turn], traits: TemplateTraits) -> "CallNames":
        names, ids, count, results = dict(self.names), dict(self.ids), self.count, set(self.strays)
        for turn in turns:
            for part in turn.parts:
                if isinstance(part, Call):
                    name = names[part.call_id] = tool_name(part.name, part.namespace)
                    if traits.call_ids == "short":
                        ids[part.call_id] = f"{count:09d}"
                    elif traits.call_ids == "counted":
                        ids[part.call_id] = f"functions.{name}:{count}"
                    count += 1
                elif isinstance(part, Result):
                    results.add(part.call_id)
        return CallNames(names, ids, count, frozenset(result for result in results if result not in names))
