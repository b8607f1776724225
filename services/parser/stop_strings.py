"""Finds stop strings in streamed text, holds back text that may be the start of one, and cuts where
it begins."""


class StopStrings:
    """Looks for any of several strings in a text that arrives in pieces.

    Each character is searched once, and the buffered text is shorter than the longest stop
    string.
    """

    __slots__ = ("_buffered", "_by_first", "_longest", "_strings")

    def __init__(self, strings: list[str]) -> None:
        """`strings`: none is empty; without any, nothing is found."""
        self._strings = sorted(dict.fromkeys(strings), key=len, reverse=True)
        self._by_first: dict[str, list[str]] = {}
        for string in self._strings:
            self._by_first.setdefault(string[0], []).append(string)
        self._longest = max(map(len, strings), default=0)
        self._buffered = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns the text that may be shown now, and the stop string if one was found; no text may
        follow then."""
        text = self._buffered + text
        stop = self._first(text)
        if stop is not None:
            self._buffered = ""
            return text[: text.index(stop)], stop

        sure = len(text) - self._unsure(text)
        self._buffered = text[sure:]
        return text[:sure], None

    def _first(self, text: str) -> str | None:
        """Returns the string that ends first, the longest of several, however the text is divided
        into pieces."""
        first = None
        end = len(text) + 1
        for string in self._strings:
            at = text.find(string, 0, end - 1 + len(string))
            if at >= 0 and at + len(string) < end:
                first = string
                end = at + len(string)
        return first

    def flush(self) -> str:
        """Returns the buffered text. No more text may follow."""
        text = self._buffered
        self._buffered = ""
        return text

    def _unsure(self, text: str) -> int:
        """Returns how many characters at the end may begin a stop string."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            strings = self._by_first.get(text[at])
            if strings is None:
                continue
            end = text[at:]
            if any(string.startswith(end) for string in strings):
                return len(end)
        return 0
