"""The properties of a model that its ledger needs."""

from collections.abc import Sequence

from msgspec import Struct

from schemas.conversation import Call
from schemas.errors import Invalid
from services.families import Family
from services.ledger.turns.keys import add_record, new_hasher
from services.templates.assistant import AssistantWriter
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.encoder import Encoder


class LedgerModel(Struct, frozen=True):
    """One model, with its template and tokenizer."""

    name: str
    digest: bytes
    """Digest of template, tokenizer and family: entries made with others are never found."""
    family: Family
    encoder: Encoder
    vocabulary: Vocabulary
    ends: tuple[str, ...]
    """Texts of the tokens that end a turn."""
    writer: AssistantWriter
    """Writes as the template does."""
    header: str
    """The template's text before a turn of the model, without reasoning markers and white space
    around it."""
    placeholder: int | None
    """The token that stands for an image. Turns in which the model wrote it are not reused: they
    would look like one in the prompt."""

    def written_calls(self, calls: Sequence[Call]) -> str:
        """Calls that follow each other as the template writes them; "" where it refuses them."""
        try:
            return self.writer.markup(calls)
        except Invalid:
            return ""

    def scope_of(self, tenant: str | None, adapter: str = "") -> bytes:
        """The hash to which the keys of a tenant's sessions with an adapter are bound. "": none."""
        hasher = new_hasher(b"")
        owner = "-" if tenant is None else f"={tenant}"
        add_record(hasher, "scope", self.name, self.digest.hex(), owner)
        if adapter:
            add_record(hasher, "adapter", adapter)
        return hasher.digest()
