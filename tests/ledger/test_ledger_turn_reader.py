"""Entries with tokens that are not the turn of their key are not used."""

from collections.abc import Callable

from msgspec.structs import replace

from schemas.conversation import Reasoning
from schemas.ledger import LedgerEntry
from schemas.token_ids import pack_ids
from services.preprocessor.model.model_setup import ModelSetup
from tests.kit.conversations import assistant
from tests.kit.every import for_each
from tests.kit.ledger_turns import SIGNER, Session, called, results, signed

SO = Reasoning("so")


@for_each(
    [
        lambda entry: replace(entry, ids=entry.ids[:-1]),
        lambda entry: replace(entry, ids=pack_ids([2**32 - 1, 2**31, 10**6])),
        lambda entry: replace(entry, ids=entry.ids + pack_ids([17])),
        lambda entry: replace(entry, context=replace(entry.context, head_chars=10**9)),
        lambda entry: replace(entry, context=replace(entry.context, state=b"")),
        lambda entry: replace(entry, in_reasoning=False),
        lambda entry: replace(entry, calls_as_text=True),
    ]
)
def test_damaged_entry_is_not_used(
    spoil: Callable[[LedgerEntry], LedgerEntry], setup: ModelSetup
) -> None:
    session = Session(setup)
    session.ledger.add(SIGNER.sign(spoil(signed(session))))
    prompt = session.prompt(assistant(SO, called()), results())
    assert [*prompt.ids] == setup.tokenizer.encode(prompt.text)
