"""What single tokens say in a plain stretch of a block. Pure.

In such a stretch (`Tape.trigger`) a token's text either goes into the block as it stands, or wants the reader. Which
of the two depends on nothing but the token and the trigger, and triggers are few: it is found out once for all turns.
"""

from collections import OrderedDict
from collections.abc import Sequence

from services.parser.tape import Trigger, escaped

KEPT = 256
"""Triggers that are known at most; a family has a handful."""


class PlainTexts(dict[int, str | None]):
    """Token → what it adds to the block; None: it must be fed. Asks once per token, as `plain[token]`."""

    __slots__ = ("_escape", "_texts", "_trigger")

    def __init__(self, texts: Sequence[str | None], trigger: Trigger, escape: bool) -> None:
        super().__init__()
        self._texts = texts
        self._trigger = trigger
        self._escape = escape

    def __missing__(self, token: int) -> str | None:
        if not 0 <= token < len(self._texts):
            return None
        text = self._texts[token]
        if text is None or self._trigger(text) is not None:
            said = None
        else:
            said = escaped(text) if self._escape else text
        self[token] = said
        return said

    def run(self, tokens: Sequence[int]) -> str | None:
        """What these add together; None: they must be fed. A run may be plain where one of its tokens is not: a line
        break only counts at the end."""
        try:
            text = self._joined(tokens)
        except (TypeError, IndexError):  # not whole characters; beyond the vocabulary
            return None
        if self._trigger(text) is not None:
            return None
        return escaped(text) if self._escape else text

    def said(self, tokens: Sequence[int]) -> str:
        """What these have added, one by one or in runs. They must have been plain."""
        text = self._joined(tokens)
        return escaped(text) if self._escape else text

    def _joined(self, tokens: Sequence[int]) -> str:
        return "".join(map(self._texts.__getitem__, tokens))  # type: ignore[arg-type]


class PlainStretches:
    """The `PlainTexts` of one vocabulary. `texts`: of each token; None where it is not whole characters."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = texts
        self._known: OrderedDict[tuple[Trigger, bool], PlainTexts] = OrderedDict()

    def of(self, trigger: Trigger, escape: bool) -> PlainTexts:
        """Those of stretches with this trigger."""
        key = (trigger, escape)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = PlainTexts(self.texts, trigger, escape)
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known
