"""Turns with all kinds of ends and beginnings, and damaged entries."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bench.ledger.models import empty_ledger
from schemas.conversation import (
    Call,
    Client,
    Message,
    Part,
    Reasoning,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
)
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import FinishReason
from schemas.frames import TokenFinish, pack_ids
from schemas.ledger import LedgerEntry
from services.ledger.evidence import call_id
from services.ledger.signer import EntrySigner
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt
from tests.kit.ledger_turns import (
    BASH,
    CALLED,
    MORE,
    SEALER,
    SIGNER,
    Session,
    assistant,
    called,
    results,
)

OWN_ID = call_id("t1", 2)
"""The id of the call in `TestClients.learnt`."""


class TestEnds:
    def test_text_cut_at_the_limit_keeps_its_tokens(self, session: Session) -> None:
        engine_ids = session.learn(
            session.prompt(), "so\n</think>\n\nHalf an answ", FinishReason.LENGTH
        )
        prompt = session.extended(engine_ids, assistant(Text("Half an answ")), MORE)
        assert session.setup.tokenizer.decode(prompt.ids[len(engine_ids) :]).startswith(
            "<|im_end|>\n<|im_start|>user\ngo on"
        )

    def test_reasoning_cut_at_the_limit_keeps_its_tokens(self, session: Session) -> None:
        engine_ids = session.learn(session.prompt(), "half a tho", FinishReason.LENGTH)
        prompt = session.extended(engine_ids, assistant(Reasoning("half a tho")), MORE)
        assert session.setup.tokenizer.decode(prompt.ids[len(engine_ids) :]).startswith(
            "\n</think>\n\n<|im_end|>"
        )

    def test_turn_cut_in_a_call_keeps_its_tokens_up_to_the_call(self, session: Session) -> None:
        before = "so\n</think>\n\nI look.\n"
        first = session.prompt()
        engine_ids = session.learn(first, before + CALLED[:40], FinishReason.LENGTH)
        prompt = session.prompt(assistant(Reasoning("so"), Text("I look.")), MORE)
        kept = len(first.ids) + len(session.ids(before))
        assert [*prompt.ids[:kept]] == engine_ids[:kept]
        assert session.setup.tokenizer.decode(prompt.ids[kept:]).startswith(
            "<|im_end|>\n<|im_start|>user\ngo on"
        )

    def test_turn_cut_after_its_only_call_keeps_its_tokens(self, session: Session) -> None:
        first = session.prompt(tool_choice=ToolChoice("auto", parallel=False))
        engine_ids = session.learn(
            first, "so\n</think>\n\n" + CALLED + "\n" + CALLED, calls="single"
        )
        prompt = session.extended(
            engine_ids,
            assistant(Reasoning("so"), called()),
            results(),
            tool_choice=ToolChoice("auto", parallel=False),
        )
        assert session.setup.tokenizer.decode(prompt.ids).count("</function>") == prompt.text.count(
            "</function>"
        )
        assert "</function>\n</tool_call><|im_end|>" in session.setup.tokenizer.decode(prompt.ids)

    @pytest.mark.parametrize("include", [False, True])
    def test_turn_stopped_within_a_token_keeps_its_tokens(
        self, session: Session, include: bool
    ) -> None:
        sampling = Sampling(stop=["END"], include_stop=include)
        first = session.prompt(sampling=sampling)
        parse, entry = session.decode(
            first, "so\n</think>\n\nAll wellEND of it", stop=["END"], include_stop=include
        )
        assert entry is not None
        session.ledger.add(SIGNER.sign(entry))
        kept = [*first.ids, *parse.stream.ids[: len(entry.ids) // 4]]
        assert len(kept) > len(first.ids) + 5
        prompt = session.extended(
            kept, assistant(Text("All wellEND" if include else "All well")), MORE
        )
        text = session.setup.tokenizer.decode(prompt.ids[len(first.ids) :])
        assert text.startswith(
            "so\n</think>\n\nAll well" + ("END" if include else "") + "<|im_end|>"
        )

    def test_interrupted_turn_has_no_entry(self, session: Session) -> None:
        """Another attempt continues it."""
        _, entry = session.decode(session.prompt(), "so\n</think>\n\nhm", FinishReason.ERROR)
        assert entry is None

    @pytest.mark.parametrize("ends", ["by an error", "by a hang-up"])
    @pytest.mark.parametrize("sent", ["all", "complete blocks"])
    def test_turn_that_is_broken_off_keeps_its_tokens(
        self, session: Session, ends: str, sent: str
    ) -> None:
        first = session.prompt()
        parse = session.parse(first, "so\n</think>\n\n" + CALLED + "\nHalf an answ")
        if ends == "by an error":
            parse.fail(ErrorInfo(ErrorKind.ENGINE, "out of memory"))
        session.commit(parse)
        own = call_id("t1", 1)
        blocks: list[Part] = [
            Reasoning("so", SEALER.of(None).seal("so", "t1")),
            called(call_id=own),
        ]
        prompt = session.prompt(
            assistant(*blocks, *([Text("Half an answ")] if sent == "all" else [])), results(own)
        )
        complete = session.ids("so\n</think>\n\n" + CALLED.removesuffix("\n</tool_call>"))
        kept = len(first.ids) + len(parse.stream.ids if sent == "all" else complete)
        assert [*prompt.ids[:kept]] == [*first.ids, *parse.stream.ids][:kept]

    def test_turn_that_is_broken_off_is_not_taken_for_another(self, session: Session) -> None:
        """A client hangs up, and the answer to its second request is the same text after other
        thoughts."""
        session.commit(session.parse(session.prompt(), "first\n</think>\n\nYes."))
        engine_ids = session.learn(session.prompt(), "second\n</think>\n\nYes.", turn="t2")
        session.extended(engine_ids, assistant(Text("Yes.")), MORE)


class TestBeginnings:
    def test_forced_call_keeps_its_tokens(self, session: Session) -> None:
        choice = ToolChoice("tool", "Bash")
        first = session.prompt(tool_choice=choice)
        engine_ids = session.learn(
            first, "<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
        )
        session.extended(engine_ids, assistant(called()), results())

    def test_answer_that_the_client_started_keeps_its_tokens(self, session: Session) -> None:
        first = session.prompt(assistant(Text("The answer is")), thinking=Thinking("disabled"))
        engine_ids = session.learn(first, " forty-two. ")
        session.extended(
            engine_ids,
            assistant(Text("The answer is forty-two.")),
            MORE,
            thinking=Thinking("disabled"),
        )

    def test_empty_open_reasoning_keeps_its_tokens(self, session: Session) -> None:
        engine_ids = session.learn(session.prompt(), "\n</think>\n\nAt once.")
        session.extended(engine_ids, assistant(Text("At once.")), MORE)


class TestClients:
    def learnt(self, session: Session) -> list[int]:
        return session.learn(session.prompt(), " so \n</think>\n\n Looking. \n" + CALLED + "\n")

    @pytest.mark.parametrize(
        "sent",
        [
            [Reasoning("so"), Text("Looking."), called()],
            [
                Reasoning(None, SEALER.of(None).seal(" so ", "t1")),
                Text(" Looking."),
                called('{ "command" : "ls" }'),
            ],
            [Reasoning(None, "foreign"), Text("Looking."), Text(" \n"), called()],
            [Text("Looking."), called()],
            [called(), Text("Looking.")],
        ],
    )
    def test_same_turn_in_another_form_keeps_its_tokens(
        self, session: Session, sent: list[Part]
    ) -> None:
        engine_ids = self.learnt(session)
        session.extended(engine_ids, assistant(*sent), results())

    @pytest.mark.parametrize(
        "sent",
        [
            [Reasoning("so it is not"), Text("Looking."), called()],
            [Reasoning("so"), Text("Looking away."), called()],
            [Reasoning("so"), Text("Look ing."), called()],
            [Reasoning("so"), Text("Looking."), called('{"command":"rm"}')],
            [Reasoning("so"), Text("Looking.")],
        ],
    )
    def test_changed_turn_is_rendered_as_the_client_sent_it(
        self, session: Session, sent: list[Part]
    ) -> None:
        self.learnt(session)
        prompt = session.prompt(assistant(*sent), results())
        assert [*prompt.ids] == session.setup.tokenizer.encode(prompt.text)
        assert prompt.text == Session(session.setup).prompt(assistant(*sent), results()).text

    @pytest.mark.parametrize(
        ("sent", "same"), [("make", True), ("cd /a && make", True), ("cd /b && make", False)]
    )
    def test_command_that_claude_code_tidied_keeps_its_tokens(
        self, session: Session, sent: str, same: bool
    ) -> None:
        engine_ids = session.learn(
            session.prompt(), "so\n</think>\n\n" + CALLED.replace("ls", "cd /a && make")
        )
        prompt = session.prompt(
            assistant(Reasoning("so"), called(f'{{"command":"{sent}"}}')), results()
        )
        assert ([*prompt.ids[: len(engine_ids)]] == engine_ids) is same

    @pytest.mark.parametrize(
        ("name", "id", "same"),
        [
            ("bash", "call_1", True),
            ("bash", OWN_ID, True),
            ("terminal", OWN_ID, True),
            ("terminal", "call_1", False),
            ("terminal", call_id("t2", 2), False),
        ],
    )
    def test_call_of_a_renamed_tool_keeps_its_tokens(
        self, session: Session, name: str, id: str, same: bool
    ) -> None:
        """opencode and Kilo send `Bash` back as `bash`, their tool; Hermes finds the one that is
        meant."""
        engine_ids = self.learnt(session)
        call = Call(id, name, '{"command":"ls"}')
        prompt = session.prompt(assistant(Text("Looking."), call), results(id))
        assert ([*prompt.ids[: len(engine_ids)]] == engine_ids) is same
        assert ("<function=Bash>" in prompt.text.partition("Looking")[2]) is same

    @pytest.mark.parametrize(
        ("ids", "same"),
        [
            ([call_id("t1", 1)], True),
            ([call_id("t1", 2)], True),
            (["call_1"], False),
            ([call_id("t2", 1)], False),
            ([call_id("t1", block) for block in (1, 2)], True),
            (["call_1", "call_2"], True),
        ],
    )
    def test_equal_calls_that_come_back_as_one_are_both_kept(
        self, session: Session, ids: list[str], same: bool
    ) -> None:
        """Only the calls' own ids show that the client left one out."""
        self.repeated(session)
        prompt = session.prompt(assistant(*(called(call_id=id) for id in ids)), results(*ids))
        assert ("so" in prompt.text.partition("assistant")[2]) is same
        assert prompt.text.count("<function=Bash>") == (2 if same else len(ids))
        assert prompt.text.count("a file") == len(ids)

    def test_equal_calls_that_come_back_apart_are_not_doubled(self, session: Session) -> None:
        self.repeated(session)
        first, second = call_id("t1", 1), call_id("t1", 2)
        apart = [assistant(called(call_id=first)), results(first), MORE]
        prompt = session.prompt(*apart, assistant(called(call_id=second)), results(second))
        assert prompt.text.count("<function=Bash>") == 2
        assert prompt.encoded.reused

    def repeated(self, session: Session) -> None:
        parse = session.parse(session.prompt(), f"so\n</think>\n\n{CALLED}\n{CALLED}", turn="t1")
        parse.finish(TokenFinish(FinishReason.STOP, session.setup.stop_ids[0]))
        session.commit(parse)

    def test_reasoning_is_not_restored_if_the_client_drops_it(self, session: Session) -> None:
        self.learnt(session)
        thinking = Thinking(history="drop")
        prompt = session.prompt(
            assistant(Text("Looking."), called()), results(), MORE, thinking=thinking
        )
        assert " so " not in prompt.text.partition("assistant\n")[2].partition("<tool_call>")[0]

    def test_turn_after_another_prompt_is_encoded_again(self, session: Session) -> None:
        """Tools are not in the key: one of the same length shows in the text."""
        self.learnt(session)
        other = replace(BASH, description="fun")
        assert len(other.description) == len(BASH.description)
        prompt = session.prompt(assistant(Text("Looking."), called()), results(), tools=[other])
        assert prompt.encoded.outcome
        assert prompt.encoded.outcome == "moved"
        assert [*prompt.ids] == session.setup.tokenizer.encode(prompt.text)

    def test_turns_of_another_tenant_are_not_found(self, session: Session) -> None:
        engine_ids = self.learnt(session)
        prompt = session.prompt(
            assistant(Text("Looking."), called()), results(), client=Client(tenant="other")
        )
        assert [*prompt.ids[: len(engine_ids)]] != engine_ids


class TestEntries:
    """Entries from the bus."""

    def signed(self, session: Session) -> LedgerEntry:
        _, entry = session.decode(session.prompt(), "so\n</think>\n\n" + CALLED)
        assert entry is not None
        return SIGNER.sign(entry)

    def prompt(self, session: Session) -> Prompt:
        return session.prompt(assistant(Reasoning("so"), called()), results())

    def test_only_signed_entries_are_read(self, session: Session) -> None:
        entry = self.signed(session)
        data = msgspec.json.encode(entry)
        assert SIGNER.read(data) == entry
        for bad in (
            b"",
            b"null",
            b"[]",
            b"{}",
            data[:-9] + data[-8:],
            data.replace(b'"m"', b'"n"', 1),
            b"\xff" + data,
        ):
            assert SIGNER.read(bad) is None
        assert EntrySigner(b"other").read(data) is None
        assert SIGNER.read(msgspec.json.encode(replace(entry, ids=entry.ids[4:]))) is None

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda entry: replace(entry, ids=entry.ids[:-1]),
            lambda entry: replace(entry, ids=entry.ids[:-48]),
            lambda entry: replace(entry, ids=b""),
            lambda entry: replace(entry, ids=pack_ids([2**32 - 1, 2**31, 10**6])),
            lambda entry: replace(entry, ids=entry.ids + pack_ids([17])),
            lambda entry: replace(entry, context=replace(entry.context, head_chars=-1)),
            lambda entry: replace(entry, context=replace(entry.context, head_chars=10**9)),
            lambda entry: replace(entry, context=replace(entry.context, head_hash=b"")),
            lambda entry: replace(entry, context=replace(entry.context, state=b"")),
            lambda entry: replace(entry, in_reasoning=False),
            lambda entry: replace(entry, calls_as_text=True),
        ],
    )
    def test_damaged_entry_is_not_used(
        self, session: Session, spoil: Callable[[LedgerEntry], LedgerEntry]
    ) -> None:
        session.ledger.add(SIGNER.sign(spoil(self.signed(session))))
        prompt = self.prompt(session)
        assert [*prompt.ids] == session.setup.tokenizer.encode(prompt.text)

    def test_lost_parent_costs_only_its_tokens(self, session: Session) -> None:
        entry = self.signed(session)
        lost = replace(entry, context=replace(entry.context, parent=b"x" * 16, parent_end=5))
        session.ledger.add(SIGNER.sign(lost))
        prompt = self.prompt(session)
        assert prompt.encoded.outcome
        assert prompt.encoded.outcome == "reused"
        assert session.setup.tokenizer.decode(prompt.ids).count(
            "<|im_start|>"
        ) == prompt.text.count("<|im_start|>")

    def test_entry_of_another_model_is_not_added(self, session: Session) -> None:
        assert not session.ledger.add(replace(self.signed(session), model="n"))

    def test_memory_is_bounded(self, setup: ModelSetup) -> None:
        ledger = empty_ledger(setup, 20_000)
        session = Session(setup, ledger)
        entry = self.signed(session)
        for number in range(100):
            ledger.add(SIGNER.sign(replace(entry, key=number.to_bytes(16, "big"))))
        assert ledger.entries.size <= 20_000
        assert 0 < len(ledger.entries) < 20

    def test_equal_answers_with_other_thoughts_are_each_found(self, session: Session) -> None:
        """Several choices of one request may have the same text and other reasoning."""
        engine_ids = [
            session.learn(session.prompt(), f"{thought}\n</think>\n\nYes.")
            for thought in ("one", "two", "three")
        ]
        for thought, ids in zip(("one", "two", "three"), engine_ids, strict=True):
            session.extended(ids, assistant(Reasoning(thought), Text("Yes.")), MORE)


def test_session_is_rebuilt_from_its_entries(setup: ModelSetup, tmp_path: Path) -> None:
    session = Session(setup)
    messages: list[Message] = []
    entries: list[LedgerEntry] = []
    for number in range(6):
        prompt = session.prompt(*messages)
        parse, entry = session.decode(
            prompt, f" thought {number} \n</think>\n\n{CALLED.replace('ls', f'ls {number}')}\n"
        )
        assert entry is not None
        entries.append(SIGNER.sign(entry))
        session.ledger.add(entries[-1])
        engine_ids = [*prompt.ids, *parse.stream.ids]
        messages += [
            assistant(called(f'{{"command":"ls {number}"}}', f"c{number}")),
            results(f"c{number}"),
        ]
    other = Session(setup)
    for entry in entries:
        other.ledger.add(entry)
    prompt = other.prompt(*messages)
    assert [*prompt.ids[: len(engine_ids)]] == engine_ids
    assert [*prompt.ids] == [*session.prompt(*messages).ids]
