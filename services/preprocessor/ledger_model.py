"""Makes the ledger of a loaded model."""

import hashlib
from collections.abc import Sequence

from schemas.conversation import Call, Conversation, Text, Turn
from schemas.errors import Invalid
from services.ledger.comparison import TurnReader, WriteCalls
from services.ledger.recall import Ledger, LedgerModel
from services.preprocessor.model import ModelSetup
from services.templates.assistant import AssistantWriter
from services.templates.messages import adapt
from services.tokenization.detokenizer import Vocabulary

_ANSWER = "zqsaid"
FORM = b"1"
"""Changes when conversations are adapted to other messages: prompts made before have another text."""


def open_ledger(setup: ModelSetup, *, entry_bytes: int, prompt_bytes: int) -> Ledger | None:
    """The model's ledger, empty. None for a tokenizer of Python code: no parser decodes with one either."""
    backend = setup.tokenizer.backend
    if backend is None:
        return None
    hasher = hashlib.blake2b(FORM, digest_size=16)
    for text in (setup.template.source, backend.to_str(), setup.family.name):
        hasher.update(hashlib.blake2b(text.encode()).digest())
    vocabulary = Vocabulary(backend)
    ends = {*setup.tokenizer.token_strings(setup.stop_ids), *setup.family.stops, *_end_in_history(setup)}
    model = LedgerModel(
        name=setup.card.name,
        digest=hasher.digest(),
        family=setup.family,
        encoder=setup.encoder,
        vocabulary=vocabulary,
        ends=tuple(sorted(ends - {""})),
        write_calls=_call_writer(setup),
        header=_header(setup, TurnReader(setup.family, vocabulary)),
    )
    return Ledger(model, entry_bytes=entry_bytes, prompt_bytes=prompt_bytes)


def _call_writer(setup: ModelSetup) -> WriteCalls:
    writer = AssistantWriter(
        setup.traits, setup.template, call_id=lambda call: call.call_id, write_call=setup.family.write_call
    )

    def write(calls: Sequence[Call]) -> str:
        try:
            return writer.markup(calls)
        except Invalid:
            return ""

    return write


def _end_in_history(setup: ModelSetup) -> list[str]:
    """The control token with which the template ends an answer that is not the last one. Some have a token of its own
    for that (gpt-oss: the model ends with `<|return|>`, its history has `<|end|>`)."""
    turns = [Turn("user", [Text("Hi.")]), Turn("assistant", [Text(_ANSWER)]), Turn("user", [Text("Well.")])]
    try:
        text = setup.template.render(adapt(Conversation("probe", turns), setup.traits, setup.template).messages)
    except Invalid:
        return []
    behind = text.partition(_ANSWER)[2]
    found = setup.encoder.cuts.find(behind)
    if not found or behind[: found[0]].strip():
        return []
    rest = behind[found[0] :]
    return [max((token for token in setup.encoder.cuts.tokens if rest.startswith(token)), key=len)]


def _header(setup: ModelSetup, reader: TurnReader) -> str:
    """What the template writes before the model's output, without the marks that open its reasoning."""
    messages = adapt(Conversation("probe", [Turn("user", [Text("Hi.")])]), setup.traits, setup.template).messages
    try:
        whole, without = setup.template.render(messages), setup.template.render(messages, generation=False)
    except Invalid:
        return ""
    header = whole.removeprefix(without) if whole.startswith(without) else ""
    return header[: reader.head_end(header, "")].strip()
