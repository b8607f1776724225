"""Stop strings in streamed text: held back while they might be coming, cut exactly where they begin."""

import re


class StopStrings:
    """Looks for any of several strings in a text that arrives in pieces.

    Linear: each character is searched once, and what is held back is shorter than the longest stop string. Memory is
    that of the strings.
    """

    __slots__ = ("_by_first", "_held", "_longest", "_pattern")

    def __init__(self, strings: list[str]) -> None:
        """`strings`: not empty, none of them empty."""
        self._pattern = re.compile("|".join(re.escape(s) for s in sorted(strings, key=len, reverse=True)))
        self._by_first: dict[str, list[str]] = {}
        for string in dict.fromkeys(strings):
            self._by_first.setdefault(string[0], []).append(string)
        self._longest = max(map(len, strings))
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that was found (nothing may follow it)."""
        text = self._held + text
        match = self._pattern.search(text)
        if match is not None:
            self._held = ""
            return text[: match.start()], match.group()
        keep = self._unsure(text)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep] if keep else text, None

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
