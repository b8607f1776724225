"""Seals the summaries of compacted conversations: clients carry them as opaque, authenticated text."""

from typing import Protocol

_MARK = "turnwire.compaction.1\n"
"""Distinguishes a sealed summary from sealed reasoning, so that neither passes for the other."""


class TextSealer(Protocol):
    """Seals and opens text; handed to the dialect, which has no key."""

    def seal(self, text: str) -> str:
        """The sealed form of a text."""

    def open(self, blob: str) -> str | None:
        """The text; None where the blob is foreign, damaged or made with another key."""


def seal_summary(sealer: TextSealer, summary: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return sealer.seal(_MARK + summary)


def open_summary(sealer: TextSealer, blob: str) -> str | None:
    """The summary in a compaction item; None where this deployment did not seal it as one."""
    text = sealer.open(blob)
    return text.removeprefix(_MARK) if text is not None and text.startswith(_MARK) else None
