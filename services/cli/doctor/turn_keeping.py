"""Tests whether a template keeps turns: plays a small session through the ledger, for `turnwire
doctor`."""

from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolSpec,
)
from schemas.errors import Invalid
from schemas.frames import pack_ids
from schemas.ledger import LedgerEntry
from services.ledger.chain import text_and_calls
from services.ledger.evidence import reasoning_digests
from services.ledger.keys import turn_key
from services.ledger.match import Outcome
from services.ledger.recall import Ledger
from services.ledger.turn_reader import ParseMode
from services.preprocessor.ledger_reader import open_ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble

_ROOM = 1 << 22
_TOOL = ToolSpec("probe", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})

Fate: TypeAlias = Literal["kept", "changed", "refused"]


class TurnFates(Struct, frozen=True):
    """Whether the next prompt has a turn's original tokens."""

    loop: Fate
    """A call with reasoning, when its result follows."""
    user: Fate
    """An answer with reasoning, when the user continues."""


def try_turns(setup: ModelSetup) -> TurnFates:
    """Tests whether the model's template keeps turns."""
    ledger = open_ledger(setup, entry_bytes=_ROOM, prompt_bytes=_ROOM)
    question, result = (
        Message("user", [Text("Which city?")]),
        Message("tool", [Result("c0", [Text("Paris")])]),
    )
    style = setup.family.style
    call = style.call and setup.family.style.write_call("probe", {"city": "Paris"})
    loop, parts = _fate(setup, ledger, [question], call, result)
    history = [question, Message("assistant", parts), result] if parts else [question]
    user, _ = _fate(
        setup, ledger, history, style.write_text("Paris."), Message("user", [Text("And then?")])
    )
    return TurnFates(loop, user)


def _output(setup: ModelSetup, prompt: Prompt, text: str) -> str:
    """The output of a model for the prompt: a thought, where the prompt leaves room for one, and
    `text`."""
    style = setup.family.style
    if style.joint:
        text = text.removesuffix(style.text.partition("{text}")[2])
    for stop in setup.tokenizer.token_strings(setup.stop_ids):
        text = text.removesuffix(stop or "\x00")
    thought = style.reasoning and "I think first."
    context = prompt.recalled.context
    if not thought or (not prompt.in_reasoning and context and context.opening):
        return text
    written = setup.family.style.write_reasoning(thought)
    if prompt.in_reasoning:
        written = thought + written.partition(thought)[2]
    return written + style.joint + text


def _fate(
    setup: ModelSetup, ledger: Ledger, messages: list[Message], text: str, reply: Message
) -> tuple[Fate, list[Part]]:
    conversation = Conversation(setup.card.name, messages, tools=[_TOOL])
    try:
        prompt = assemble(conversation, setup, limit=False, look_up=ledger.look_up)
        context = prompt.recalled.context
        assert context is not None
        output = _output(setup, prompt, text)
        parts = ledger.reader.read(
            output, prompt.tools, ParseMode(prompt.in_reasoning, prompt.prefix)
        )
        if not parts:
            return "refused", []
        ids = pack_ids(setup.encoder.encode(output))
        key = turn_key(context.state, *text_and_calls(parts))
        thoughts = reasoning_digests(
            [part.text or "" for part in parts if isinstance(part, Reasoning)]
        )
        reasoned = prompt.in_reasoning
        ledger.add(
            LedgerEntry(
                setup.card.name,
                key,
                context,
                ids,
                in_reasoning=reasoned,
                thoughts=thoughts,
                mac=key,
            )
        )
        sent: list[Part] = [
            Call("c0", p.name, p.arguments) if isinstance(p, Call) else p for p in parts
        ]
        later = Conversation(
            setup.card.name, [*messages, Message("assistant", sent), reply], tools=[_TOOL]
        )
        recalled = assemble(later, setup, limit=False, look_up=ledger.look_up).recalled
    except Invalid:
        return "refused", []
    if recalled.outcome is Outcome.REUSED:
        return "kept", sent
    return "changed", sent
