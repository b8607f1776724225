"""Whether a template keeps turns: a small session through the ledger, for `turnwire doctor`."""

from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import Call, Conversation, Part, Result, Text, ToolSpec, Turn
from schemas.errors import Invalid
from schemas.frames import pack_ids
from schemas.ledger import LedgerEntry
from services.parser.turn_keys import turn_key
from services.preprocessor.ledger import Ledger
from services.preprocessor.ledger_chain import spoken
from services.preprocessor.ledger_model import open_ledger
from services.preprocessor.ledger_turns import Mode
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble

_ROOM = 1 << 22
_TOOL = ToolSpec("probe", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})

Fate: TypeAlias = Literal["kept", "changed", "refused"]


class Keeps(Struct, frozen=True):
    """What becomes of a turn's tokens in the next prompt."""

    loop: Fate
    """A call with reasoning, when its result comes."""
    user: Fate
    """An answer with reasoning, when the user goes on."""


def keeps_turns(setup: ModelSetup) -> Keeps | None:
    """Finds out by trying. None where there can be no ledger."""
    ledger = open_ledger(setup, entry_bytes=_ROOM, prompt_bytes=_ROOM)
    if ledger is None:
        return None
    asked = Turn("user", [Text("Which city?")])
    thought = setup.family.style.reasoning and "I think first."
    called = _Written(setup, thought, setup.family.style.call and setup.family.write_call("probe", {"city": "Paris"}))
    answered = _Written(setup, thought, setup.family.style.write_text("Paris."))
    loop, parts = _fate(setup, ledger, [asked], called, Turn("tool", [Result("c0", [Text("Paris")])]))
    more = Turn("user", [Text("And then?")])
    history = [asked, Turn("assistant", parts), Turn("tool", [Result("c0", [Text("Paris")])])] if parts else [asked]
    user, _ = _fate(setup, ledger, history, answered, more)
    return Keeps(loop, user)


class _Written:
    """What a model would write."""

    def __init__(self, setup: ModelSetup, thought: str, said: str) -> None:
        self._setup = setup
        self._thought = thought
        self._said = said

    def behind(self, prompt: Prompt) -> str:
        joint = self._setup.family.style.joint
        text = self._setup.family.style.text
        said = self._said.removesuffix(text.partition("{text}")[2]) if joint else self._said
        for stop in self._setup.tokenizer.token_strings(self._setup.stop_ids):
            said = said.removesuffix(stop or "\x00")
        closed = not prompt.in_reasoning and prompt.found and prompt.found.seat and prompt.found.seat.lead
        if not self._thought or closed:
            return said
        written = self._setup.family.write_reasoning(self._thought)
        if prompt.in_reasoning:
            written = self._thought + written.partition(self._thought)[2]
        return written + joint + said


def _fate(
    setup: ModelSetup, ledger: Ledger, turns: list[Turn], written: _Written, then: Turn
) -> tuple[Fate, list[Part]]:
    conversation = Conversation(setup.card.name, turns, tools=[_TOOL])
    try:
        prompt = assemble(conversation, setup, limit=False, remember=ledger.recall)
        assert prompt.found is not None
        seat = prompt.found.seat
        assert seat is not None
        text = written.behind(prompt)
        mode = Mode(prompt.in_reasoning, prompt.prefix)
        parts = ledger.reader.read(text, prompt.tools, mode)
        if not parts:
            return "refused", []
        ids = pack_ids(setup.encoder.encode(text))
        key = turn_key(seat.state, *spoken(parts))
        entry = LedgerEntry(setup.card.name, key, seat, ids, in_reasoning=prompt.in_reasoning, mac=b"probe")
        ledger.add(entry)
        said: list[Part] = [Call("c0", p.name, p.arguments) if isinstance(p, Call) else p for p in parts]
        later = Conversation(setup.card.name, [*turns, Turn("assistant", said), then], tools=[_TOOL])
        found = assemble(later, setup, limit=False, remember=ledger.recall).found
    except Invalid:
        return "refused", []
    return ("kept" if found is not None and found.outcome == "reused" else "changed"), said
