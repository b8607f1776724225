"""Stop strings in streamed text: held back while they might be coming, cut exactly where they begin."""


class StopStrings:
    """Looks for any of several strings in a text that arrives in pieces.

    Linear: each character is searched once, and what is held back is shorter than the longest stop string. Memory is
    that of the strings.
    """

    __slots__ = ("_by_first", "_held", "_longest", "_strings")

    def __init__(self, strings: list[str]) -> None:
        """`strings`: not empty, none of them empty."""
        self._strings = sorted(dict.fromkeys(strings), key=len, reverse=True)
        self._by_first: dict[str, list[str]] = {}
        for string in self._strings:
            self._by_first.setdefault(string[0], []).append(string)
        self._longest = len(self._strings[0])
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that was found (nothing may follow it)."""
        text = self._held + text
        found = self._first(text)
        if found is not None:
            self._held = ""
            return text[: text.index(found)], found
        keep = self._unsure(text)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep] if keep else text, None

    def _first(self, text: str) -> str | None:
        """The string that is whole first; the longest of several. So it does not matter how the text was cut."""
        found, end = None, len(text) + 1
        for string in self._strings:
            at = text.find(string, 0, end - 1 + len(string))
            if at >= 0 and at + len(string) < end:
                found, end = string, at + len(string)
        return found

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _unsure(self, text: str) -> int:
        """How many characters at the end could begin a stop string."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            strings = self._by_first.get(text[at])
            if strings is not None:
                end = text[at:]
                if any(s.startswith(end) for s in strings):
                    return len(end)
        return 0
