"""Reads the compaction items of a request: the trigger of a summary, and sealed summaries.

Only this deployment can read a summary. `TextSealer` also opens sealed reasoning. The mark at the
beginning of a summary distinguishes the two, so that neither is accepted as the other.
"""

from typing import Protocol

from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.body import DecodedRequest

TRIGGER = "compaction_trigger"
COMPACTED = "The conversation before this point was compacted. Summary of it:\n\n"
"""Precedes the summary of a compaction item in the prompt."""
_MARK = "turnwire.compaction.1\n"


class TextSealer(Protocol):
    """Seals and opens text for the conversion of a request, which has no key."""

    def seal(self, text: str) -> str:
        """The sealed form of a text."""

    def open(self, blob: str) -> str | None:
        """The text; None for a blob that is foreign, damaged or made with another key."""


def ends_in_trigger(decoded: DecodedRequest) -> bool:
    """Whether the last item is a compaction trigger. Raises Invalid for one in another place."""
    for index, kind in enumerate(decoded.kinds[:-1]):
        if kind.type == TRIGGER:
            raise Invalid(
                "A compaction_trigger must be the last item.",
                param=f"input[{index}]",
                code="invalid_value",
            )
    return bool(decoded.kinds) and decoded.kinds[-1].type == TRIGGER


def seal_summary(sealer: TextSealer, summary: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return sealer.seal(_MARK + summary)


def open_summary(sealer: TextSealer | None, item: wire.CompactionItem, field_path: str) -> str:
    """The summary in a compaction item. Raises Invalid where this deployment did not seal it as
    one. `field_path`: the item's place in the request."""
    text = None
    if sealer is not None:
        text = sealer.open(item.encrypted_content)
    if text is None or not text.startswith(_MARK):
        raise Invalid(
            "The encrypted content of this compaction item could not be verified.",
            param=f"{field_path}.encrypted_content",
            code="invalid_encrypted_content",
        )
    return text.removeprefix(_MARK)
