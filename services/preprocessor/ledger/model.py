"""Makes the ledger of a loaded model."""

import hashlib
from collections.abc import Collection, Sequence

from schemas.conversation import Call, Text, Turn
from schemas.errors import Invalid
from services.ledger.comparison import TurnReader, WriteCalls
from services.ledger.recall import Ledger, LedgerModel
from services.preprocessor.model import ModelSetup
from services.templates.assistant import AssistantWriter
from services.templates.messages import render_turns
from services.tokenization.detokenizer import Vocabulary

_ANSWER, _QUESTION = "zqsaid", "zqasked"
FORM = b"1"
"""Changes when conversations are adapted to other messages: prompts made before have another text."""


def open_ledger(setup: ModelSetup, *, entry_bytes: int, prompt_bytes: int) -> Ledger:
    """The model's ledger, empty."""
    backend = setup.tokenizer.backend
    hasher = hashlib.blake2b(FORM, digest_size=16)
    for text in (setup.template.source, backend.to_str(), setup.family.name):
        hasher.update(hashlib.blake2b(text.encode()).digest())
    vocabulary = Vocabulary(backend)
    ends = {*setup.tokenizer.token_strings(setup.stop_ids), *setup.family.stops} - {""}
    ends.update(_end_in_history(setup, ends))
    model = LedgerModel(
        name=setup.card.name,
        digest=hasher.digest(),
        family=setup.family,
        encoder=setup.encoder,
        vocabulary=vocabulary,
        ends=tuple(sorted(ends)),
        write_calls=_call_writer(setup),
        header=_header(setup, TurnReader(setup.family, vocabulary)),
    )
    return Ledger(model, entry_bytes=entry_bytes, prompt_bytes=prompt_bytes)


def _call_writer(setup: ModelSetup) -> WriteCalls:
    writer = AssistantWriter(
        setup.traits, setup.template, call_id=lambda call: call.call_id, write_call=setup.family.style.write_call
    )

    def write(calls: Sequence[Call]) -> str:
        try:
            return writer.markup(calls)
        except Invalid:
            return ""

    return write


def _end_in_history(setup: ModelSetup, known: Collection[str]) -> list[str]:
    """The control token with which the template ends an answer that is not the last one. Some have a token of its own
    for that (gpt-oss: the model ends with `<|return|>`, its history has `<|end|>`). None where a `known` end stands
    before the next message's text: what comes first may only close the text (Kimi K3)."""
    turns = [Turn("user", [Text("Hi.")]), Turn("assistant", [Text(_ANSWER)]), Turn("user", [Text(_QUESTION)])]
    behind = render_turns(turns, setup.traits, setup.template).partition(_ANSWER)[2]
    if any(end in behind.partition(_QUESTION)[0] for end in known):
        return []
    found = setup.encoder.cuts.find(behind)
    if not found or behind[: found[0]].strip():
        return []
    rest = behind[found[0] :]
    return [max((token for token in setup.encoder.cuts.tokens if rest.startswith(token)), key=len)]


def _header(setup: ModelSetup, reader: TurnReader) -> str:
    """What the template writes before the model's output, without the marks that open its reasoning."""
    turns = [Turn("user", [Text("Hi.")])]
    whole = render_turns(turns, setup.traits, setup.template)
    without = render_turns(turns, setup.traits, setup.template, generation=False)
    header = whole.removeprefix(without) if without and whole.startswith(without) else ""
    return header[: reader.head_end(header, "")].strip()
