"""The certain beginning of the next prompt."""

import os
from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import Call, Conversation, Message, Part, Reasoning, Result, Text
from services.preprocessor.prefill import certain_prefix
from services.tokenization.segments import common_prefix

ASKED = Conversation("m", [Message("user", [Text("What?")])])


def spell(conversation: Conversation) -> list[int]:
    """A template that shows everything, one id a character."""
    shown = ""
    for turn in conversation.messages:
        shown += f"<{turn.role}>"
        for part in turn.parts:
            if isinstance(part, Result):
                shown += f"[{part.name}]" + "".join(p.text for p in part.parts if isinstance(p, Text)) + "/"
            elif isinstance(part, Call):
                shown += part.name
            elif isinstance(part, Text | Reasoning):
                shown += part.text or ""
    return [ord(c) for c in shown + "<assistant>"]


def prefix(*said: Part) -> str:
    return "".join(map(chr, certain_prefix(ASKED, said, spell)))


def test_an_answer_is_followed_by_its_user() -> None:
    assert prefix(Text("That.")) == "<user>What?<assistant>That.<user>"


def test_calls_are_followed_by_their_results() -> None:
    said = prefix(Reasoning("hm"), Call("1", "ls", "{}"), Call("2", "pwd", "{}"))
    assert said == "<user>What?<assistant>hmlspwd<tool>[ls]"


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60), st.lists(st.integers(4, 7), max_size=9))
def test_exactly_what_both_prompts_share(common: list[int], cut: int, other: list[int]) -> None:
    prompts = iter([[*common, *other], [*common[:cut], 9, *common[cut:]]])

    def encode(_: Conversation) -> Sequence[int]:
        return next(prompts)

    found = certain_prefix(ASKED, [Text("x")], encode)
    expected = common[:cut] if cut <= len(common) else common
    assert list(found) == expected


@given(st.text("ab", max_size=30), st.text("ab", max_size=30), st.text("ab\u6f22", max_size=30))
def test_the_common_prefix_of_texts(front: str, one: str, other: str) -> None:
    pair: Any = (front + one, front + other)
    assert common_prefix(*pair) == os.path.commonprefix(pair)  # noqa: RUF071 - of characters


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_of_ids(front: list[int], one: list[int], other: list[int]) -> None:
    pair = (array("I", front + one), array("I", front + other))
    assert list(common_prefix(*pair)) == os.path.commonprefix([list(ids) for ids in pair])  # noqa: RUF071
