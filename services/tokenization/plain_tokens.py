"""Caches the texts of single tokens in a plain stretch of a block. Pure.

In a `PlainStretch` a token's text either goes into the block, or must pass the reader. That depends
only on the token and the stretch, and stretches are few, so that one table serves all turns."""

from collections.abc import Sequence

from services.families.grammar.scanner import PlainStretch, escaped


class PlainTexts(dict[int, str | None]):
    """Token → the text that it adds to the block; None: it must be fed. Filled as it is read."""

    __slots__ = ("_escape", "_texts", "_trigger")

    def __init__(self, texts: Sequence[str | None], stretch: PlainStretch) -> None:
        super().__init__()
        self._texts = texts
        self._trigger = stretch.trigger
        self._escape = stretch.escape

    def __missing__(self, token: int) -> str | None:
        if not 0 <= token < len(self._texts):
            return None
        text = self._texts[token]
        if text is None or self._trigger(text) is not None:
            text = None
        elif self._escape:
            text = escaped(text)
        self[token] = text
        return text

    def run(self, tokens: Sequence[int]) -> str | None:
        """The text of several tokens; None: they must be fed. A run may be plain although one of
        its tokens is not: a line break only matters at the end. An id below 0 counts from the end:
        an array of ids refuses it."""
        try:
            text = self._joined(tokens)
        except (TypeError, IndexError):  # not whole characters; beyond the vocabulary
            return None
        if self._trigger(text) is not None:
            return None
        return escaped(text) if self._escape else text

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens that were plain, alone or in runs."""
        text = self._joined(tokens)
        return escaped(text) if self._escape else text

    def _joined(self, tokens: Sequence[int]) -> str:
        return "".join(map(self._texts.__getitem__, tokens))  # type: ignore[arg-type]


class PlainStretches(dict[PlainStretch, PlainTexts]):
    """The `PlainTexts` of one family. Filled as it is read."""

    __slots__ = ("texts",)

    def __init__(self, texts: Sequence[str | None]) -> None:
        """`texts`: the text of each token; None where it is not whole characters."""
        super().__init__()
        self.texts = texts

    def __missing__(self, stretch: PlainStretch) -> PlainTexts:
        texts = self[stretch] = PlainTexts(self.texts, stretch)
        return texts
