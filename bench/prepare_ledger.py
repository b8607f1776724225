"""The same session with the turn ledger: each turn of the model is committed in its own tokens, and found again."""

import json
import time
from collections.abc import Iterable

from msgspec.structs import replace

from schemas.conversation import Call, Reasoning, Text, Turn
from schemas.frames import TurnRequest, pack_ids
from schemas.ledger import LedgerEntry
from services.ledger.evidence import reasoning_digests
from services.ledger.keys import key_arguments, squeeze, turn_key
from services.ledger.recall import Ledger
from services.preprocessor.ledger.model import open_ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.assembly import Prompt, assemble

ROOM = 256 << 20


def play(requests: Iterable[TurnRequest], setup: ModelSetup) -> list[tuple[float, int]]:
    """What `assemble` costs for each request, in ms of CPU, and the prompt's size in tokens.

    Raises RuntimeError where a turn is not found again.
    """
    ledger = open_ledger(setup, entry_bytes=ROOM, prompt_bytes=ROOM)
    costs: list[tuple[float, int]] = []
    prompt: Prompt | None = None
    for number, request in enumerate(requests):
        conversation = request.conversation
        if prompt is None:
            prompt = assemble(replace(conversation, turns=conversation.turns[:1]), setup, remember=ledger.recall)
        _commit(ledger, setup, prompt, conversation.turns[-2], number)
        began = time.process_time()
        prompt = assemble(conversation, setup, remember=ledger.recall)
        costs.append(((time.process_time() - began) * 1e3, len(prompt.ids)))
        if prompt.found is None or prompt.found.outcome != "reused":
            raise RuntimeError(f"turn {number} is not made of its own tokens: {prompt.found}")
    return costs


def _commit(ledger: Ledger, setup: ModelSetup, prompt: Prompt, turn: Turn, number: int) -> None:
    """What the demo model's parser would commit for this turn."""
    context = prompt.found.context if prompt.found is not None else None
    reasoning, said, call = turn.parts
    assert context is not None
    assert isinstance(reasoning, Reasoning)
    assert isinstance(said, Text)
    assert isinstance(call, Call)
    path = json.loads(call.arguments)["path"]
    markup = f"<function={call.name}>\n<parameter=path>\n{path}\n</parameter>\n</function>"
    text = f"{reasoning.text}\n</think>\n\n{said.text}\n\n<tool_call>\n{markup}\n</tool_call><|im_end|>"
    ledger.add(
        LedgerEntry(
            model=ledger.model.name,
            key=turn_key(context.state, squeeze(said.text), [(call.name, key_arguments(call.arguments))]),
            context=context,
            ids=pack_ids(setup.encoder.encode(text)),
            thoughts=reasoning_digests([reasoning.text or ""]),
            closed=True,
            in_reasoning=prompt.in_reasoning,
            mac=number.to_bytes(16, "little"),
        )
    )
