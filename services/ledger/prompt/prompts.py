"""A prompt as text, and as ids."""

from collections.abc import Sequence

from msgspec import Struct

from schemas.conversation import OutputFormat
from schemas.ledger import LedgerContext
from services.ledger.lookup.match import Outcome
from services.templates.tools import PromptTools
from services.tokenization.image_processor import Expansion
from services.tokenization.segments import TokenIds


class RenderedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as text."""

    marked_text: str
    """The text with marks (`DataMarks`), where data may spell control tokens."""
    plain_text: str
    """The text without marks; "" for a prompt that was sent as ids."""
    tools: PromptTools = PromptTools()
    prefix: str = ""
    """The end of the text, if it opens a forced call: it belongs to the model's turn."""
    in_reasoning: bool = False
    """The text ends inside an open reasoning block."""
    continues: bool = False
    """The text ends in the assistant's own text, which the model continues."""
    images: Sequence[tuple[str, Expansion]] = ()
    """Hash and expansion of each image in the text, in order."""
    allowed_tools: list[str] = []
    """The only tools that may be called, under the names that the model sees; empty: all."""
    enforced_format: OutputFormat | None = None
    """The format that the engine enforces; None: the output is free."""


class EncodedPrompt(Struct, frozen=True):
    """A prompt's ids, and how many of them the ledger contributed."""

    ids: TokenIds
    outcome: Outcome
    """The outcome of the newest turn."""
    reused: int
    """Tokens that were not encoded: those of an earlier prompt and of its turn."""
    context: LedgerContext | None
    """The context of the turn that follows; None where its entry could not be found again."""
    states: Sequence[bytes] = ()
    """The chain hash before each of the model's turns, the one that follows included."""
    marked_text: str = ""
    """The rendered text, with marks (`DataMarks`); "" without a ledger."""
