"""Writes the arguments of a call as one JSON object, one argument after the other."""

from services.families.grammar.scanner import BlockWriter, quoted


class ArgumentWriter:
    """The arguments of the call with the open block.

    An argument that stands twice breaks the call: nothing is written from there on, because the
    first one may have been sent.
    """

    def __init__(self, blocks: BlockWriter) -> None:
        self._blocks = blocks
        self._end = "{}"
        self.keys: set[str] = set()
        """The arguments that have begun."""
        self.broken = False
        """Whether the call cannot complete."""

    def begin(self, key: str) -> None:
        """Begins the next argument; its value is added with `write`."""
        self.broken = self.broken or not key or key in self.keys
        self.write((", " if self.keys else "{") + quoted(key) + ": ")
        self.keys.add(key)
        self._end = "}"

    def write(self, text: str) -> None:
        """Adds a part of the value."""
        if not self.broken:
            self._blocks.write(text)

    def set_all(self, key: str, value: str) -> None:
        """Sets a `value` that has all arguments; it is written at the end."""
        self.keys.add(key)
        self._end = value

    def end(self) -> None:
        """Ends the object."""
        self.write(self._end)
