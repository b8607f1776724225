"""Turns are restored in whatever form clients send them back, unless a client changed one."""

from schemas.conversation import Call, Part, Reasoning, Text, Thinking
from schemas.events import FinishReason
from schemas.frames import TokenFinish
from services.ledger.turns.evidence import call_id
from services.preprocessor.model.model_setup import ModelSetup
from tests.kit.conversations import assistant
from tests.kit.every import for_each, for_rows
from tests.kit.ledger_turns import CALLED, MORE, SEALER, Session, called, keeps, learnt, results

OWN_ID = call_id("t1", 2)
"""The id of the call of `learnt`."""
STOP = FinishReason.STOP
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
