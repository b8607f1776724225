"""What seals and opens the opaque blobs that clients carry: handed in, because dialects have no key."""

from typing import Protocol

_MARK = "turnwire.compaction.1\n"
"""Tells a sealed summary from a sealed thought, so that neither is taken for the other."""


class Vault(Protocol):
    """`services.runtime.seal.Sealer` is one."""

    def seal(self, text: str) -> str:
        """The blob of a text."""
        ...

    def open(self, blob: str) -> str | None:
        """The text, or None where the blob is foreign, damaged or made with another key."""
        ...


def seal_summary(vault: Vault, summary: str) -> str:
    """`encrypted_content` of a compaction item."""
    return vault.seal(_MARK + summary)


def open_summary(vault: Vault, blob: str) -> str | None:
    """The summary in a compaction item's blob; None where it is not one of ours."""
    text = vault.open(blob)
    return text.removeprefix(_MARK) if text is not None and text.startswith(_MARK) else None
