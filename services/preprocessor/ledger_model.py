"""A ledger for a loaded model."""

import hashlib

from services.parser.detokenizer import Vocabulary
from services.preprocessor.ledger import Ledger, LedgerModel
from services.preprocessor.model import ModelSetup

FORM = b"1"
"""Changes when conversations become other messages: prompts made before have another text."""


def open_ledger(setup: ModelSetup, *, entry_bytes: int, prompt_bytes: int) -> Ledger | None:
    """The model's ledger, empty. None for a tokenizer of Python code: no parser decodes with one either."""
    backend = setup.tokenizer.backend
    if backend is None:
        return None
    hasher = hashlib.blake2b(FORM, digest_size=16)
    for text in (setup.template.source, backend.to_str(), setup.family.name):
        hasher.update(hashlib.blake2b(text.encode()).digest())
    ends = {*setup.tokenizer.token_strings(setup.stop_ids), *setup.family.stops}
    model = LedgerModel(
        name=setup.card.name,
        digest=hasher.digest(),
        family=setup.family,
        encoder=setup.encoder,
        vocabulary=Vocabulary(backend),
        ends=tuple(sorted(ends - {""})),
    )
    return Ledger(model, entry_bytes=entry_bytes, prompt_bytes=prompt_bytes)
