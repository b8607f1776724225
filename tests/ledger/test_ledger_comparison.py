"""Turns with all kinds of ends and beginnings, and damaged entries."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Client,
    Part,
    Reasoning,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
)
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from schemas.ledger import LedgerEntry
from schemas.token_ids import pack_ids
from services.ledger.signer import EntrySigner
from services.ledger.turns.evidence import call_id
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt
from tests.kit.conversations import assistant
from tests.kit.every import for_each, for_rows
from tests.kit.ledger_turns import (
    BASH,
    CALLED,
    MORE,
    SEALER,
    SIGNER,
    Session,
    called,
    outcome,
    results,
)

OWN_ID = call_id("t1", 2)
"""The id of the call of `learnt`."""
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
USER = "<|im_end|>\n<|im_start|>user\ngo on"


def keeps(prompt: Prompt, ids: list[int]) -> bool:
    return [*prompt.ids[: len(ids)]] == ids


# -- ends and beginnings of turns


@for_rows(
    [
        ("so\n</think>\n\nHalf an answ", LENGTH, Text("Half an answ"), USER),
        ("half a tho", LENGTH, Reasoning("half a tho"), f"\n</think>\n\n{USER}"),
        ("\n</think>\n\nAt once.", STOP, Text("At once."), USER),
        ("a thought that a bud</think>\n\nSo.", STOP, Text("So."), USER),
        ("so\n</think>\n\nIt is d</think>one.", STOP, Text("It is done."), USER),
    ]
)
def test_turn_keeps_its_tokens_however_it_ends(
    text: str, reason: FinishReason, sent: Part, following: str, setup: ModelSetup
) -> None:
    session = Session(setup)
    engine_ids = session.learn(session.prompt(), text, reason)
    prompt = session.extended(engine_ids, assistant(sent), MORE)
    assert setup.tokenizer.decode(prompt.ids[len(engine_ids) :]).startswith(following)


def test_answer_that_the_client_started_keeps_its_tokens(session: Session) -> None:
    thinking = Thinking("disabled")
    first = session.prompt(assistant(Text("The answer is")), thinking=thinking)
    engine_ids = session.learn(first, " forty-two. ")
    whole = assistant(Text("The answer is forty-two."))
    session.extended(engine_ids, whole, MORE, thinking=thinking)


def test_forced_call_keeps_its_tokens(session: Session) -> None:
    first = session.prompt(tool_choice=ToolChoice("tool", "Bash"))
    rest = "<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
    session.extended(session.learn(first, rest), assistant(called()), results())


def test_turn_cut_after_its_only_call_keeps_its_tokens(session: Session) -> None:
    single = ToolChoice("auto", parallel=False)
    first = session.prompt(tool_choice=single)
    written = f"so\n</think>\n\n{CALLED}\n{CALLED}"
    engine_ids = session.learn(first, written, calls="single")
    message = assistant(Reasoning("so"), called())
    prompt = session.extended(engine_ids, message, results(), tool_choice=single)
    decoded = session.setup.tokenizer.decode(prompt.ids)
    assert decoded.count("</function>") == prompt.text.count("</function>")
    assert "</function>\n</tool_call><|im_end|>" in decoded


@pytest.mark.parametrize("include", [False, True])
def test_turn_stopped_within_a_token_keeps_its_tokens(session: Session, include: bool) -> None:
    first = session.prompt(sampling=Sampling(stop=["END"], include_stop=include))
    written = "so\n</think>\n\nAll wellEND of it"
    parse, entry = session.decode(first, written, stop=["END"], include_stop=include)
    assert entry is not None
    session.ledger.add(SIGNER.sign(entry))
    kept = [*first.ids, *parse.stream.ids[: len(entry.ids) // 4]]
    assert len(kept) > len(first.ids) + 5
    shown = "All wellEND" if include else "All well"
    prompt = session.extended(kept, assistant(Text(shown)), MORE)
    text = session.setup.tokenizer.decode(prompt.ids[len(first.ids) :])
    assert text.startswith(f"so\n</think>\n\n{shown}<|im_end|>")


def test_interrupted_turn_has_no_entry(session: Session) -> None:
    """Another attempt continues it."""
    _, entry = session.decode(session.prompt(), "so\n</think>\n\nhm", FinishReason.ERROR)
    assert entry is None


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("all_is_sent", [True, False])
def test_turn_that_is_broken_off_keeps_its_tokens(
    session: Session, fails: bool, all_is_sent: bool
) -> None:
    """By an error or by a hang-up; the client sends back all, or complete blocks only."""
    first = session.prompt()
    parse = session.parse(first, "so\n</think>\n\n" + CALLED + "\nHalf an answ")
    if fails:
        parse.fail(ErrorInfo(ErrorKind.ENGINE, "out of memory"))
    session.commit(parse)
    own = call_id("t1", 1)
    blocks: list[Part] = [Reasoning("so", SEALER.of(None).seal("so", "t1")), called(call_id=own)]
    kept: Sequence[int] = session.ids("so\n</think>\n\n" + CALLED.removesuffix("\n</tool_call>"))
    if all_is_sent:
        blocks.append(Text("Half an answ"))
        kept = parse.stream.ids
    prompt = session.prompt(assistant(*blocks), results(own))
    assert keeps(prompt, [*first.ids, *parse.stream.ids][: len(first.ids) + len(kept)])


def test_turn_that_is_broken_off_is_not_taken_for_another(session: Session) -> None:
    """A client hangs up, and the answer to its second request is the same text after other
    thoughts."""
    session.commit(session.parse(session.prompt(), "first\n</think>\n\nYes."))
    engine_ids = session.learn(session.prompt(), "second\n</think>\n\nYes.", turn="t2")
    session.extended(engine_ids, assistant(Text("Yes.")), MORE)


# -- what clients send back


def learnt(session: Session) -> list[int]:
    return session.learn(session.prompt(), " so \n</think>\n\n Looking. \n" + CALLED + "\n")


SEALED = Reasoning(None, SEALER.of(None).seal(" so ", "t1"))
SO, LOOKING = Reasoning("so"), Text("Looking.")


@for_each(
    [
        [SO, LOOKING, called()],
        [SEALED, Text(" Looking."), called('{ "command" : "ls" }')],
        [Reasoning(None, "foreign"), LOOKING, Text(" \n"), called()],
        [LOOKING, called()],
        [called(), LOOKING],
    ]
)
def test_same_turn_in_another_form_keeps_its_tokens(sent: list[Part], setup: ModelSetup) -> None:
    session = Session(setup)
    session.extended(learnt(session), assistant(*sent), results())


@for_each(
    [
        [Reasoning("so it is not"), LOOKING, called()],
        [SO, Text("Looking away."), called()],
        [SO, Text("Look ing."), called()],
        [SO, LOOKING, called('{"command":"rm"}')],
        [SO, LOOKING],
    ]
)
def test_changed_turn_is_rendered_as_the_client_sent_it(
    sent: list[Part], setup: ModelSetup
) -> None:
    session = Session(setup)
    learnt(session)
    prompt = session.prompt(assistant(*sent), results())
    assert [*prompt.ids] == setup.tokenizer.encode(prompt.text)
    assert prompt.text == Session(setup).prompt(assistant(*sent), results()).text


@for_rows(
    [
        ("bash", "call_1", True),
        ("terminal", OWN_ID, True),
        ("terminal", "call_1", False),
        ("terminal", call_id("t2", 2), False),
    ]
)
def test_call_of_a_renamed_tool_keeps_its_tokens(
    name: str, id: str, same: bool, setup: ModelSetup
) -> None:
    """opencode and Kilo send `Bash` back as `bash`, their tool; Hermes finds the one that is
    meant."""
    session = Session(setup)
    engine_ids = learnt(session)
    prompt = session.prompt(assistant(LOOKING, Call(id, name, '{"command":"ls"}')), results(id))
    assert keeps(prompt, engine_ids) is same
    assert ("<function=Bash>" in prompt.text.partition("Looking")[2]) is same


def repeated(session: Session) -> None:
    parse = session.parse(session.prompt(), f"so\n</think>\n\n{CALLED}\n{CALLED}", turn="t1")
    parse.finish(TokenFinish(STOP, session.setup.stop_ids[0]))
    session.commit(parse)


@for_rows(
    [
        ([call_id("t1", 1)], True),
        ([call_id("t1", 2)], True),
        (["call_1"], False),
        ([call_id("t2", 1)], False),
        ([call_id("t1", block) for block in (1, 2)], True),
        (["call_1", "call_2"], True),
    ]
)
def test_equal_calls_that_come_back_as_one_are_both_kept(
    ids: list[str], same: bool, setup: ModelSetup
) -> None:
    """Only the calls' own ids show that the client left one out."""
    session = Session(setup)
    repeated(session)
    prompt = session.prompt(assistant(*(called(call_id=id) for id in ids)), results(*ids))
    assert ("so" in prompt.text.partition("assistant")[2]) is same
    assert prompt.text.count("<function=Bash>") == (2 if same else len(ids))
    assert prompt.text.count("a file") == len(ids)


def test_reasoning_is_not_restored_if_the_client_drops_it(session: Session) -> None:
    learnt(session)
    dropping = Thinking(history="drop")
    prompt = session.prompt(assistant(LOOKING, called()), results(), MORE, thinking=dropping)
    assert " so " not in prompt.text.partition("assistant\n")[2].partition("<tool_call>")[0]


def test_turn_after_another_prompt_is_encoded_again(session: Session) -> None:
    """Tools are not in the key: one of the same length shows in the text."""
    learnt(session)
    other = replace(BASH, description="fun")
    assert len(other.description) == len(BASH.description)
    prompt = session.prompt(assistant(LOOKING, called()), results(), tools=[other])
    assert outcome(prompt) == "moved"
    assert [*prompt.ids] == session.setup.tokenizer.encode(prompt.text)


def test_turns_of_another_tenant_are_not_found(session: Session) -> None:
    engine_ids, other = learnt(session), Client(tenant="other")
    prompt = session.prompt(assistant(LOOKING, called()), results(), client=other)
    assert not keeps(prompt, engine_ids)


# -- entries from the bus


def signed(session: Session) -> LedgerEntry:
    _, entry = session.decode(session.prompt(), "so\n</think>\n\n" + CALLED)
    assert entry is not None
    return SIGNER.sign(entry)


def test_only_signed_entries_are_read(session: Session) -> None:
    entry = signed(session)
    data = msgspec.json.encode(entry)
    assert SIGNER.read(data) == entry
    changed = (data[:-9] + data[-8:], data.replace(b'"m"', b'"n"', 1), b"\xff" + data)
    for bad in (b"", b"null", b"[]", b"{}", *changed):
        assert SIGNER.read(bad) is None
    assert EntrySigner(b"other").read(data) is None
    assert SIGNER.read(msgspec.json.encode(replace(entry, ids=entry.ids[4:]))) is None
    assert not session.ledger.add(replace(entry, model="n")), "an entry of another model"


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
