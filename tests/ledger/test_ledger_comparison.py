"""Turns with all kinds of ends and beginnings keep their tokens where the prompt still has them."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from schemas.conversation import Client, Part, Reasoning, Sampling, Text, Thinking, ToolChoice
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import FinishReason
from services.ledger.turns.evidence import call_id
from services.preprocessor.model.model_setup import ModelSetup
from tests.kit.conversations import assistant
from tests.kit.every import for_rows
from tests.kit.ledger_turns import (
    BASH,
    CALLED,
    MORE,
    SEALER,
    SIGNER,
    Session,
    called,
    keeps,
    learnt,
    outcome,
    results,
)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
LOOKING = Text("Looking.")
USER = "<|im_end|>\n<|im_start|>user\ngo on"


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
