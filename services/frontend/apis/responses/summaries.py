"""Seals the summaries of compaction items, which only this deployment can read.

`TextSealer` also opens sealed reasoning. The mark at the beginning of a summary distinguishes the
two, so that neither is accepted as the other.
"""

from typing import Protocol

COMPACTED = "The conversation before this point was compacted. Summary of it:\n\n"
"""Precedes the summary of a compaction item in the prompt."""
_MARK = "turnwire.compaction.1\n"


class TextSealer(Protocol):
    """Seals and opens text, for the dialect, which has no key."""

    def seal(self, text: str) -> str:
        """The sealed form of a text."""

    def open(self, blob: str) -> str | None:
        """The text; None for a blob that is foreign, damaged or made with another key."""


def seal_summary(sealer: TextSealer, summary: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return sealer.seal(_MARK + summary)


def open_summary(sealer: TextSealer, blob: str) -> str | None:
    """The summary in a compaction item; None where this deployment did not seal it as one."""
    text = sealer.open(blob)
    if text is None or not text.startswith(_MARK):
        return None
    return text.removeprefix(_MARK)
