"""A ledger for a loaded model."""

import hashlib

from schemas.conversation import Conversation, Text, Turn
from schemas.errors import Invalid
from services.parser.detokenizer import Vocabulary
from services.preprocessor.ledger import Ledger, LedgerModel
from services.preprocessor.ledger_turns import LeadOf, lead_of
from services.preprocessor.messages import adapt
from services.preprocessor.model import ModelSetup

_SAID = "zqsaid"
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
    ends = {*setup.tokenizer.token_strings(setup.stop_ids), *setup.family.stops, *_end_in_history(setup)}
    model = LedgerModel(
        name=setup.card.name,
        digest=hasher.digest(),
        family=setup.family,
        encoder=setup.encoder,
        vocabulary=Vocabulary(backend),
        ends=tuple(sorted(ends - {""})),
        header=_header(setup, lead_of(setup.family)),
    )
    return Ledger(model, entry_bytes=entry_bytes, prompt_bytes=prompt_bytes)


def _end_in_history(setup: ModelSetup) -> list[str]:
    """The control token with which the template ends an answer that is not the last one; some have one of their own for
    that (gpt-oss: the model ends with `<|return|>`, its history has `<|end|>`)."""
    turns = [Turn("user", [Text("Hi.")]), Turn("assistant", [Text(_SAID)]), Turn("user", [Text("Well.")])]
    try:
        adapted = adapt(Conversation("probe", turns), setup.traits, setup.template)
        text = setup.template.render(adapted.messages)
    except Invalid:
        return []
    behind = text.partition(_SAID)[2]
    found = setup.encoder.cuts.find(behind)
    if not found or behind[: found[0]].strip():
        return []
    rest = behind[found[0] :]
    return [max((token for token in setup.encoder.cuts.tokens if rest.startswith(token)), key=len)]


def _header(setup: ModelSetup, lead: LeadOf) -> str:
    """What the template writes for the model to go on from, without what opens its reasoning."""
    asked = adapt(Conversation("probe", [Turn("user", [Text("Hi.")])]), setup.traits, setup.template).messages
    try:
        whole, without = setup.template.render(asked), setup.template.render(asked, generation=False)
    except Invalid:
        return ""
    header = whole.removeprefix(without) if whole.startswith(without) else ""
    return header[: lead(header, "")].strip()
