"""Makes the ledger of a loaded model: finds how its template writes turns. Pure."""

import hashlib
from collections.abc import Collection

from schemas.conversation import Message, Text
from services.ledger.prompt.model import LedgerModel
from services.ledger.turn_ledger import TurnLedger
from services.ledger.turns.turn_reader import TurnReader
from services.preprocessor.model.model_setup import ModelSetup
from services.templates.assistant import AssistantWriter
from services.templates.messages import render_messages
from services.tokenization.detokenizer import Vocabulary

_ANSWER, _QUESTION = "zqsaid", "zqasked"
LEDGER_VERSION = b"5"
"""The form of prompts and entries. It changes when conversations are adapted to other messages, so
that earlier prompts have another text, and when entries change."""


def open_ledger(setup: ModelSetup, *, entry_bytes: int, prompt_bytes: int) -> TurnLedger:
    """The model's ledger, empty."""
    backend = setup.tokenizer.backend
    vocabulary = Vocabulary(backend)
    placeholder: int | None = None
    if setup.images is not None:
        placeholder = backend.token_to_id(setup.images.placeholder)
    model = LedgerModel(
        name=setup.card.name,
        digest=_digest(setup),
        family=setup.family,
        encoder=setup.encoder,
        vocabulary=vocabulary,
        ends=_ends(setup),
        writer=AssistantWriter(
            setup.traits,
            setup.template,
            call_ids={},
            write_call=setup.family.style.write_call,
        ),
        header=_header(setup, TurnReader(setup.family, vocabulary)),
        placeholder=placeholder,
    )
    return TurnLedger(model, entry_bytes=entry_bytes, prompt_bytes=prompt_bytes)


def _digest(setup: ModelSetup) -> bytes:
    """`LedgerModel.digest`."""
    hasher = hashlib.blake2b(LEDGER_VERSION, digest_size=16)
    for text in (setup.template.source, setup.tokenizer.backend.to_str(), setup.family.name):
        hasher.update(hashlib.blake2b(text.encode()).digest())
    return hasher.digest()


def _ends(setup: ModelSetup) -> tuple[str, ...]:
    """`LedgerModel.ends`."""
    ends = {*setup.tokenizer.token_strings(setup.stop_ids), *setup.family.stops} - {""}
    ends.update(_end_in_history(setup, ends))
    return tuple(sorted(ends))


def _end_in_history(setup: ModelSetup, ends: Collection[str]) -> list[str]:
    """The control token with which the template ends an answer that is not the last one. Some have
    a separate token for that (gpt-oss: the model ends with `<|return|>`, its history has
    `<|end|>`). Empty where one of `ends` is before the next message's text: the first token may
    only close the text (Kimi K3)."""
    messages = [
        Message("user", [Text("Hi.")]),
        Message("assistant", [Text(_ANSWER)]),
        Message("user", [Text(_QUESTION)]),
    ]
    text = render_messages(messages, setup.traits, setup.template)
    after_answer = text.partition(_ANSWER)[2]
    between = after_answer.partition(_QUESTION)[0]
    if any(end in between for end in ends):
        return []

    cuts = setup.encoder.cuts.find(after_answer)
    if not cuts or after_answer[: cuts[0]].strip():
        return []
    rest = after_answer[cuts[0] :]
    tokens = [token for token in setup.encoder.cuts.tokens if rest.startswith(token)]
    return [max(tokens, key=len)]


def _header(setup: ModelSetup, reader: TurnReader) -> str:
    """The template's text before the model's output, without markers that open its reasoning."""
    messages = [Message("user", [Text("Hi.")])]
    with_header = render_messages(messages, setup.traits, setup.template)
    without_header = render_messages(messages, setup.traits, setup.template, generation=False)
    header = ""
    if without_header and with_header.startswith(without_header):
        header = with_header.removeprefix(without_header)
    return header[: reader.head_end(header, "")].strip()
