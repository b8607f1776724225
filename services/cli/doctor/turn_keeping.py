"""Tests whether a template keeps turns: plays a small session through the ledger, for `turnwire
doctor`."""

from collections.abc import Sequence
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
from schemas.ledger import LedgerEntry
from schemas.token_ids import pack_ids
from services.ledger.lookup.match import Outcome
from services.ledger.turns.chain import text_and_calls
from services.ledger.turns.evidence import reasoning_digests
from services.ledger.turns.keys import turn_key
from services.ledger.turns.turn_reader import ParseMode
from services.preprocessor.library import assemble
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt

_ROOM = 1 << 22
_TOOL = ToolSpec("probe", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})

TrialResult: TypeAlias = Literal["kept", "changed", "refused"]


class TrialResults(Struct, frozen=True):
    """Whether the next prompt has a turn's original tokens."""

    loop: TrialResult
    """A call with reasoning, when its result follows."""
    user: TrialResult
    """An answer with reasoning, when the user continues."""


def try_turns(setup: ModelSetup) -> TrialResults:
    """Tests whether the model's template keeps turns."""
    trial = _Trial(setup)
    style = setup.family.style
    question = Message("user", [Text("Which city?")])
    result = Message("tool", [Result("c0", [Text("Paris")])])

    call = style.call and style.write_call("probe", {"city": "Paris"})
    loop, parts = trial.play([question], call, result)
    history = [question, Message("assistant", parts), result] if parts else [question]
    follow_up = Message("user", [Text("And then?")])
    user, _ = trial.play(history, style.write_text("Paris."), follow_up)
    return TrialResults(loop, user)


class _Trial:
    """Plays small sessions through a ledger of its own."""

    def __init__(self, setup: ModelSetup) -> None:
        self._setup = setup
        self._ledger = open_ledger(setup, entry_bytes=_ROOM, prompt_bytes=_ROOM)

    def play(
        self, messages: list[Message], text: str, reply: Message
    ) -> tuple[TrialResult, list[Part]]:
        """Has the model answer with `text`, and continues with `reply`. Returns what became of the
        answer's tokens, and the answer as clients send it back."""
        try:
            prompt = self._render(messages)
            output = self._output(prompt, text)
            mode = ParseMode(prompt.rendered.in_reasoning, prompt.rendered.prefix)
            parts = self._ledger.reader.read(output, prompt.tools, mode)
            if not parts:
                return "refused", []
            self._keep(prompt, output, parts)
            answer: list[Part] = [
                Call("c0", part.name, part.arguments) if isinstance(part, Call) else part
                for part in parts
            ]
            later = self._render([*messages, Message("assistant", answer), reply])
        except Invalid:
            return "refused", []
        is_kept = later.encoded.outcome is Outcome.REUSED
        return "kept" if is_kept else "changed", answer

    def _render(self, messages: list[Message]) -> Prompt:
        conversation = Conversation(self._setup.card.name, messages, tools=[_TOOL])
        return assemble(conversation, self._setup, ledger=self._ledger)

    def _output(self, prompt: Prompt, text: str) -> str:
        """The output of a model for the prompt: a thought, where the prompt leaves room for one,
        and `text`."""
        setup = self._setup
        style = setup.family.style
        if style.joint:
            text = text.removesuffix(style.text.partition("{text}")[2])
        for stop in setup.tokenizer.token_strings(setup.stop_ids):
            text = text.removesuffix(stop or "\x00")
        thought = style.reasoning and "I think first."
        context = prompt.encoded.context
        if not thought or (not prompt.rendered.in_reasoning and context and context.opening):
            return text
        written = style.write_reasoning(thought)
        if prompt.rendered.in_reasoning:
            written = thought + written.partition(thought)[2]
        return written + style.joint + text

    def _keep(self, prompt: Prompt, output: str, parts: Sequence[Part]) -> None:
        """Adds a turn to the ledger."""
        context = prompt.encoded.context
        assert context is not None
        key = turn_key(context.state, *text_and_calls(parts))
        reasoning = [part.text or "" for part in parts if isinstance(part, Reasoning)]
        entry = LedgerEntry(
            self._setup.card.name,
            key,
            context,
            pack_ids(self._setup.encoder.encode(output)),
            in_reasoning=prompt.rendered.in_reasoning,
            reasoning_digests=reasoning_digests(reasoning),
            mac=key,
        )
        self._ledger.add(entry)
