"""What clients do not see is put back into the histories of random answers, however a client
spells what it got."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Client,
    Conversation,
    HostedKind,
    HostedTool,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
)
from schemas.events import HostedResult
from services.frontend.content.hosted_tools import hosted_spec
from services.frontend.turns.hidden.builder import HiddenTurnsBuilder
from services.frontend.turns.hidden.history import HiddenTurns, put_back, turn_keys
from services.ledger.turns.chain import parts_of
from services.ledger.turns.evidence import call_id
from services.ledger.turns.keys import squeeze

SEARCH: HostedKind = "tool_search_bm25"
HOSTED = {"find": HostedTool(SEARCH, hidden=True)}
USER = Message("user", [Text("Do it.")])
WORDS = st.text(alphabet="ab \n.", max_size=12)


@dataclass
class Answer:
    """The turns of an answer, and what its client gets."""

    turns: list[list[Part]]
    hidden: HiddenTurns
    shown: list[Part]


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    number = draw(st.integers(1, 4))
    builder = HiddenTurnsBuilder(HOSTED, conversation(USER))
    turns: list[list[Part]] = []
    for turn in range(number):
        is_last = turn == number - 1
        parts: list[Part] = []
        for position in range(draw(st.integers(0, 3))):
            words = draw(WORDS.filter(str.strip))
            thought = Reasoning(words, f"seal-{turn}-{position}")
            said: list[Part] = [thought, Text(words)]
            parts.append(draw(st.sampled_from(said)))
        names = draw(st.lists(st.sampled_from(["find", "look"]), max_size=3))
        if not is_last:
            names = ["find"] * (1 + len(names))
        parts += [
            Call(call_id(f"turn{turn}", block), name, "{}") for block, name in enumerate(names)
        ]
        if is_last and names and "look" not in names:
            parts.append(Call(call_id(f"turn{turn}", 9), "look", "{}"))
        turns.append(parts)
        calls = [part for part in parts if isinstance(part, Call) and part.name == "find"]
        if calls:
            results = [HostedResult(call.call_id, "find", SEARCH, "{}") for call in calls]
            builder.add(f"id-{turn}", parts, results)
        else:
            builder.end(parts)
    return Answer(turns, builder.hidden, builder.shown)


def joined(parts: list[Part]) -> list[Part]:
    """As clients with a field for each kind keep them."""
    thought = "".join(part.text or "" for part in parts if isinstance(part, Reasoning))
    text = "".join(part.text for part in parts if isinstance(part, Text))
    calls = [part for part in parts if isinstance(part, Call)]
    kept: list[Part] = [Reasoning(thought)] if thought else []
    if text:
        kept.append(Text(text))
    return [*kept, *calls]


def trimmed(parts: list[Part]) -> list[Part]:
    return [Text(part.text.strip()) if isinstance(part, Text) else part for part in parts]


def sealed(parts: list[Part]) -> list[Part]:
    """Without the text of reasoning, as some clients keep only seals."""
    return [Reasoning(None, part.seal) if isinstance(part, Reasoning) else part for part in parts]


def thoughtless(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Reasoning)]


SPELLINGS = st.sampled_from([list, joined, trimmed, sealed, thoughtless])


def comparable(parts: list[Part], *, thoughts: bool) -> Any:
    """What must be equal: text and thoughts however they are joined, and calls in their order."""
    text = squeeze("".join(part.text for part in parts if isinstance(part, Text)))
    reasoning = [part for part in parts if isinstance(part, Reasoning) and thoughts]
    calls = [part for part in parts if isinstance(part, Call)]
    return text, squeeze("".join(part.text or "" for part in reasoning)), calls


@given(answers(), SPELLINGS)
def test_hidden_turns_are_put_back(answer: Answer, spell: Any) -> None:
    sent = spell(answer.shown)
    history = [USER, *([Message("assistant", sent)] if sent else [])]
    messages = put_back(history, {1: answer.hidden})
    if not sent:
        return
    written = [message.parts for message in messages if message.role == "assistant"]
    earlier = len(answer.turns) - 1
    assert written[:earlier] == answer.turns[:earlier]
    last = [part for parts in written[earlier:] for part in parts]
    has_thoughts = spell in (list, joined, trimmed)
    assert comparable(last, thoughts=has_thoughts) == comparable(
        answer.turns[-1], thoughts=has_thoughts
    )
    assert {*_result_ids(messages)} == {
        part.call_id
        for parts in answer.turns
        for part in parts
        if isinstance(part, Call) and part.name == "find"
    }


def _result_ids(messages: list[Message]) -> list[str]:
    return [
        part.call_id for message in messages for part in message.parts if isinstance(part, Result)
    ]


@given(answers(), WORDS.filter(str.strip))
def test_changed_turn_stays_as_it_is(answer: Answer, words: str) -> None:
    hidden = squeeze(
        "".join(part.text for part in parts_of(answer.hidden.messages) if isinstance(part, Text))
    )
    if not hidden or hidden.startswith(squeeze(words)) or squeeze(words).startswith(hidden):
        return
    history = [USER, Message("assistant", [Text(words)])]
    assert put_back(history, {1: answer.hidden}) == history


def conversation(*messages: Message, session: str | None = None) -> Conversation:
    search = hosted_spec(HOSTED["find"], "find")
    return Conversation("m", [*messages], tools=[search], client=Client(session))


def test_keys_are_of_calls_else_of_all_before() -> None:
    first = Message("assistant", [Text("I look."), Call(call_id("a", 1), "look", "{}")])
    result = Message("tool", [Result(call_id("a", 1), [Text("seen")])])
    rest = Message("assistant", [Call(call_id("a", 2), "look", "{}")])
    done = Message("assistant", [Text(" All done. ")])
    joined_text = Message("assistant", [Text("All"), Text("\ndone.")])
    history = [USER, first, result, rest, USER]
    keys = turn_keys(conversation(*history, done))
    assert {*keys} == {1, 5}, "the third message is a part of the same turn"
    pruned = [USER, first, Message("tool", [Result(call_id("a", 1), [])]), rest, USER]
    assert turn_keys(conversation(*pruned, joined_text)) == keys

    other_user = [Message("user", [Text("Do that.")]), *history[1:]]
    other_text = [USER, replace(first, parts=[Text("Hm."), *first.parts[1:]]), *history[2:]]
    other_call = [*history[:3], Message("assistant", [Call(call_id("b", 2), "look", "{}")]), USER]
    for other in (other_user, other_text, other_call):
        got = turn_keys(conversation(*other, done))
        assert got[1] == keys[1]
        assert got[5] != keys[5]
    assert turn_keys(conversation(*history, done, session="s"))[5] != keys[5]

    foreign = Message("assistant", [Call("call_1", "look", "{}")])
    thought = Message("assistant", [Reasoning("Hm")])
    assert turn_keys(conversation(USER, foreign, USER, thought)) == {}


LOOK = Call(call_id("one", 1), "look", "{}")
FIND = Call(call_id("one", 2), "find", "{}")
TURNS: list[list[Part]] = [
    [Text("A. "), FIND, Text("B. "), LOOK],
    [Reasoning("Hm."), Text("A. "), Reasoning("Or?"), FIND, Text("B."), LOOK],
    [Reasoning("Hm."), FIND, Reasoning("So."), LOOK, Text("A.")],
    [Reasoning("Hm."), Text("A."), LOOK, FIND],
    [FIND, Text("A."), LOOK],
]


@pytest.mark.parametrize("turn", TURNS)
def test_hidden_call_keeps_its_place_among_texts(turn: list[Part]) -> None:
    builder = HiddenTurnsBuilder(HOSTED, conversation(USER))
    builder.add("id", turn, [HostedResult(FIND.call_id, "find", SEARCH, "{}")])
    history = [USER, Message("assistant", builder.shown)]
    _, restored, _ = put_back(history, {1: builder.hidden})
    assert restored.parts == turn


def test_hidden_call_keeps_its_place_in_joined_text() -> None:
    builder = HiddenTurnsBuilder(HOSTED, conversation(USER))
    builder.add("id", TURNS[0], [HostedResult(FIND.call_id, "find", SEARCH, "{}")])
    history = [USER, Message("assistant", joined(builder.shown))]
    _, restored, _ = put_back(history, {1: builder.hidden})
    assert restored.parts == [Text("A."), FIND, Text(" B. "), LOOK]
