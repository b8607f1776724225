"""Turns of the demo model as a parser reads them and a ledger keeps them, without a bus."""

from collections.abc import Callable
from typing import Any

from schemas.conversation import Call, Client, Conversation, Message, Result, Text, ToolSpec
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from schemas.ledger import LedgerEntry
from schemas.requests import ParseContext
from services.ledger.signer import EntrySigner
from services.ledger.turn_ledger import TurnLedger
from services.parser.ledger_entry import entries_of
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import FamilyVocabulary
from sessions.models import empty_ledger
from tests.kit.conversations import user
from tests.kit.model_output import written_call

BASH = ToolSpec("Bash", "run", {"type": "object", "properties": {"command": {"type": "string"}}})
CALLED = written_call("Bash", command="ls")
SEALER, SIGNER = Sealer(b"test"), EntrySigner(b"test")
QUESTION = user("hi")
MORE = user("go on")
TURNS = [f"{number:024x}" for number in range(20)]
ANSWER = "Done."


def called(arguments: str = '{"command":"ls"}', call_id: str = "c1") -> Call:
    return Call(call_id, "Bash", arguments)


def results(*ids: str) -> Message:
    return Message("tool", [Result(call_id, [Text("a file")]) for call_id in ids or ("c1",)])


class Session:
    """A preprocessor and a parser shard without a bus."""

    def __init__(self, setup: ModelSetup, ledger: TurnLedger | None = None) -> None:
        self.setup = setup
        self.ledger = ledger or self.fresh()

    def fresh(self) -> TurnLedger:
        return empty_ledger(self.setup)

    def prompt(self, *messages: Message, **more: Any) -> Prompt:
        conversation = Conversation("m", [QUESTION, *messages], **{"tools": [BASH], **more})
        unseal = SEALER.of(None).open
        prompt = assemble(conversation, self.setup, unseal=unseal, ledger=self.ledger)
        self.ledger.keep(prompt.encoded)
        return prompt

    def ids(self, text: str) -> list[int]:
        """Ids that no tokenizer returns: two characters at a time."""
        special = {
            token: self.setup.tokenizer.id_of(token)
            for token in ("<think>", "</think>", "<tool_call>", "</tool_call>")
        }
        ids: list[int] = []
        while text:
            marker = next((token for token in special if text.startswith(token)), None)
            piece = marker or text[:2].partition("<")[0] or text[:1]
            ids += self.setup.tokenizer.encode(piece)
            text = text[len(piece) :]
        return ids

    def parse(self, prompt: Prompt, text: str, *, turn: str = "t1", **more: Any) -> TurnParse:
        """The parse of a turn that has not ended."""
        assert prompt.encoded.outcome
        context = ParseContext(
            model="m",
            family=self.setup.family.name,
            frontend="f",
            prompt_tokens=len(prompt.ids),
            tools=prompt.tools,
            in_reasoning=prompt.rendered.in_reasoning,
            prefix=prompt.rendered.prefix,
            ledger=prompt.encoded.context,
            **more,
        )
        stream = TurnStream(turn, 1, context, "w")
        vocabulary = FamilyVocabulary(self.ledger.model.vocabulary, self.setup.family)
        parse = TurnParse.open(stream, vocabulary, SEALER)
        parse.feed(self.ids(text))
        return parse

    def entries(self, parse: TurnParse) -> list[LedgerEntry]:
        return entries_of(parse)

    def commit(self, parse: TurnParse) -> None:
        for entry in map(SIGNER.sign, self.entries(parse)):
            self.ledger.add(entry)

    def decode(
        self, prompt: Prompt, text: str, reason: FinishReason = FinishReason.STOP, **more: Any
    ) -> tuple[TurnParse, LedgerEntry | None]:
        parse = self.parse(prompt, text, **more)
        if not parse.ended:
            parse.finish(
                TokenFinish(reason, self.setup.stop_ids[0] if reason is FinishReason.STOP else None)
            )
        entries = self.entries(parse)
        return parse, entries[0] if entries else None

    def learn(self, prompt: Prompt, text: str, *args: Any, **more: Any) -> list[int]:
        """Decodes and commits a turn; returns the ids that the engine then has."""
        parse, entry = self.decode(prompt, text, *args, **more)
        assert entry is not None
        self.ledger.add(SIGNER.sign(entry))
        return [*prompt.ids, *parse.stream.ids]

    def extended(self, ids: list[int], *messages: Message, **more: Any) -> Prompt:
        """The prompt of these messages, which begins with the ids that the engine has."""
        prompt = self.prompt(*messages, **more)
        assert [*prompt.ids[: len(ids)]] == ids
        return prompt


class Alike:
    """Sessions with the same visible turns and thoughts of their own."""

    def __init__(
        self, session: Session, client: Callable[[int], Client] = lambda number: Client()
    ) -> None:
        self.session, self.client = session, client
        self.ids: dict[int, list[int]] = {}
        self.entries: dict[int, LedgerEntry] = {}

    def prompt(self, number: int, *messages: Message, **more: Any) -> Prompt:
        return self.session.prompt(*messages, client=self.client(number), **more)

    def decode(
        self,
        number: int,
        visible: str,
        *messages: Message,
        thought: str | None = None,
        turn: str = "",
    ) -> None:
        """The next turn of a session: its own thought, then what all have."""
        prompt = self.prompt(number, *messages)
        text = f"{self.thought(number) if thought is None else thought}\n</think>\n\n{visible}"
        parse, entry = self.session.decode(prompt, text, turn=turn or TURNS[number])
        assert entry is not None
        self.entries[number] = SIGNER.sign(entry)
        self.ids[number] = [*prompt.ids, *parse.stream.ids]

    def commit(self) -> None:
        for entry in self.entries.values():
            self.session.ledger.add(entry)

    @staticmethod
    def thought(number: int) -> str:
        return f"I am number {number}."

    def is_exact(self, number: int, prompt: Prompt) -> bool:
        ids = self.ids[number]
        return [*prompt.ids[: len(ids)]] == ids

    def is_rendered(self, prompt: Prompt) -> bool:
        assert prompt.encoded.outcome
        return prompt.encoded.reused == 0 and "I am number" not in prompt.text


def outcome(prompt: Prompt) -> str:
    assert prompt.encoded.outcome
    return prompt.encoded.outcome


def started(session: Session, count: int, visible: str, **more: Any) -> Alike:
    alike = Alike(session, **more)
    for number in range(count):
        alike.decode(number, visible)
    alike.commit()
    return alike


def keeps(prompt: Prompt, ids: list[int]) -> bool:
    """Whether a prompt begins with these ids."""
    return [*prompt.ids[: len(ids)]] == ids


def learnt(session: Session) -> list[int]:
    """A turn with a thought, a text and a call, in the ledger; returns the engine's ids."""
    return session.learn(session.prompt(), " so \n</think>\n\n Looking. \n" + CALLED + "\n")


def signed(session: Session) -> LedgerEntry:
    """The signed entry of a turn with a thought and a call."""
    _, entry = session.decode(session.prompt(), "so\n</think>\n\n" + CALLED)
    assert entry is not None
    return SIGNER.sign(entry)
