"""The choice among entries with the same visible history."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Client, Message, Reasoning, Text
from services.ledger.lookup.choice import MAX_COMPARED
from services.ledger.turns.evidence import call_id
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from sessions.models import empty_ledger
from tests.kit.conversations import assistant
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.kit.ledger_turns import (
    ANSWER,
    CALLED,
    MORE,
    SEALER,
    TURNS,
    Alike,
    Session,
    called,
    outcome,
    results,
    started,
)


@for_each([str, lambda call: call.replace("_", "")])
def test_ids_of_calls_choose_the_entry(respell: Callable[[str], str], session: Session) -> None:
    alike = started(session, 20, CALLED)
    for number in range(20):
        own = respell(call_id(TURNS[number], 1))
        prompt = alike.prompt(number, assistant(called(call_id=own)), results(own))
        assert alike.is_exact(number, prompt)


def test_call_of_a_lost_turn_chooses_no_entry(session: Session) -> None:
    """Another session's turn with the same call is another turn."""
    alike = started(session, 1, CALLED)
    lost = call_id("f" * 24, 1)
    prompt = alike.prompt(0, assistant(called(call_id=lost)), results(lost))
    assert outcome(prompt) == "unknown"
    assert alike.is_rendered(prompt)


def answered(alike: Alike, number: int, *reasoning: Reasoning, **more: Any) -> Prompt:
    """The prompt after the answer that all sessions have, with what this client sends of it."""
    message = replace(assistant(*reasoning, Text(ANSWER)), **more)
    return alike.prompt(number, message, MORE)


def test_reasoning_and_ids_of_items_choose_the_entry(session: Session) -> None:
    alike = started(session, 20, ANSWER)
    for number in range(20):
        thought, turn = alike.thought(number), TURNS[number]
        for sent in (
            Reasoning(None, SEALER.of(None).seal(thought, turn)),
            Reasoning(thought),
            Reasoning(None, None, id=f"rs_{turn}000"),
        ):
            assert alike.is_exact(number, answered(alike, number, sent))
        assert alike.is_exact(number, answered(alike, number, ids=[f"msg_{turn}001"]))


def test_seal_chooses_among_equal_thoughts(session: Session) -> None:
    alike = Alike(session)
    for number in range(3):
        alike.decode(number, ANSWER + " " * number, thought="The same.")
    alike.commit()
    for number in range(3):
        seal = SEALER.of(None).seal("The same.", TURNS[number])
        assert alike.is_exact(number, answered(alike, number, Reasoning("The same.", seal)))
    assert outcome(answered(alike, 0, Reasoning("The same."))) == "ambiguous"


def test_session_id_chooses_the_entry(session: Session) -> None:
    """Without evidence nothing is restored, nor is the reasoning of another session."""
    alike = started(session, 3, ANSWER, client=lambda number: Client(session=f"s{number}"))
    for number in range(3):
        assert alike.is_exact(number, answered(alike, number))
    other = answered(alike, 3)
    alike.client = lambda number: Client()
    for prompt in (other, answered(alike, 0)):
        assert outcome(prompt) == "ambiguous"
        assert alike.is_rendered(prompt)


@pytest.mark.parametrize("names", ["none", "own", "one"])
def test_sessions_that_are_equal_to_the_token_get_equal_prompts(
    setup: ModelSetup, names: str
) -> None:
    """An evaluation that is run several times at temperature 0, by a client that keeps no ids and
    no seals: the same request gives the same prompt, before and after others were served."""
    clients = {"none": lambda _: Client(), "one": lambda _: Client(session="s")}
    client = clients.get(names, lambda number: Client(session=f"s{number}"))
    for chance in chances(names, 6):
        thoughts = chance.choices(["", "So.", "Hm."], k=chance.randint(2, 5))
        runs = Alike(Session(setup), client)
        histories: dict[int, list[Message]] = {}
        prompts: dict[int, list[int]] = {}
        """The prompt with this number of messages."""
        for served in range(chance.randint(4, 12)):
            number = chance.randint(0, 3)
            sent = histories.setdefault(number, [])
            turn = len(sent) // 2
            if turn < len(thoughts):
                runs.decode(number, ANSWER, *sent, thought=thoughts[turn], turn=f"{served:024x}")
                runs.session.ledger.add(runs.entries[number])
                sent += [assistant(Text(ANSWER)), MORE]
            for length in range(2, len(sent) + 1, 2):
                prompt = runs.prompt(number, *sent[:length])
                assert outcome(prompt) == "reused"
                assert prompts.setdefault(length, [*prompt.ids]) == [*prompt.ids]


def test_any_number_of_equal_sessions_needs_no_evidence(session: Session) -> None:
    alike = Alike(session)
    alike.decode(0, ANSWER, thought="The same.")
    for number in range(MAX_COMPARED + 2):
        mac = number.to_bytes(16)
        session.ledger.add(replace(alike.entries[0], mac=mac, id_digests=[mac]))
    assert alike.is_exact(0, answered(alike, 0))


def test_later_turn_decides_the_earlier_ones(session: Session) -> None:
    """The first turn shows nothing; its successor has a call."""
    alike = Alike(session, lambda number: Client(session=f"s{number}"))
    first: list[Message] = [assistant(Text(ANSWER)), MORE]
    for visible, messages, suffix in ((ANSWER, [], "a"), (CALLED, first, "b")):
        for number in range(4):
            alike.decode(number, visible, *messages, turn=TURNS[number][:-1] + suffix + str(number))
        alike.commit()
    alike.client = lambda number: Client()  # as a resumed session with another id
    for number in range(4):
        own = call_id(TURNS[number][:-1] + "b" + str(number), 1)
        prompt = alike.prompt(number, *first, assistant(called(call_id=own)), results(own))
        assert alike.is_exact(number, prompt)
        assert prompt.text.count("I am number") == 2


def test_unrestored_turn_stays_unrestored(session: Session) -> None:
    """A prompt that restored nothing of an unclear turn is the prefix of the next one, which
    could."""
    alike = started(session, 2, ANSWER)
    first: list[Message] = [assistant(Text(ANSWER)), MORE]
    alike.decode(0, CALLED, *first, turn="a" * 24)
    alike.commit()
    own = call_id("a" * 24, 1)
    prompt = alike.prompt(0, assistant(Reasoning(alike.thought(0)), Text(ANSWER)), MORE)
    assert alike.thought(0) in prompt.text
    prompt = alike.prompt(0, *first, assistant(called(call_id=own)), results(own))
    assert alike.is_exact(0, prompt)
    assert prompt.text.count("I am number") == 1


def test_both_branches_of_a_fork_are_exact(session: Session) -> None:
    alike = started(session, 1, CALLED)
    own = call_id(TURNS[0], 1)
    stem = [assistant(called(call_id=own)), results(own)]
    for branch in (1, 2):
        alike.decode(branch, ANSWER, *stem)
    alike.commit()
    for branch in (1, 2):
        message = assistant(Reasoning(alike.thought(branch)), Text(ANSWER))
        assert alike.is_exact(branch, alike.prompt(branch, *stem, message, MORE))
    prompt = alike.prompt(0, *stem, assistant(Text(ANSWER)), MORE)
    assert alike.is_exact(0, prompt), "their common stem is certain"


def test_seal_of_another_tenant_chooses_no_entry(session: Session) -> None:
    alike = started(session, 2, ANSWER)
    foreign = SEALER.of("other").seal(alike.thought(0), TURNS[0])
    assert alike.is_rendered(answered(alike, 0, Reasoning(None, foreign)))


def test_lone_entry_is_not_used_while_the_bucket_may_have_siblings(session: Session) -> None:
    """While the bucket may have siblings, a lone entry does not add reasoning."""
    session.ledger.entries.shared = True
    alike = started(session, 1, ANSWER)
    key = alike.entries[0].key
    assert alike.is_rendered(answered(alike, 0))
    session.ledger.entries.set_complete(key)
    assert alike.is_exact(0, answered(alike, 0))
    session.ledger.entries.doubt()
    assert alike.is_rendered(answered(alike, 0))


def test_evicted_sibling_still_counts(setup: ModelSetup) -> None:
    ledger = empty_ledger(setup, 3000)
    alike = started(Session(setup, ledger), 8, ANSWER)
    assert len(ledger.entries) == 1
    assert alike.is_rendered(answered(alike, 7))
    assert alike.is_exact(7, answered(alike, 7, Reasoning(alike.thought(7))))
