"""Fronts of prompts, told by their text."""

from hypothesis import given
from hypothesis import strategies as st

from services.preprocessor.fronts import BRANCHES, MIN_CHARS, Fronts
from services.preprocessor.template import Message

FRONT = "system\n" + "Be brief. " * MIN_CHARS


def asked(content: object) -> list[Message]:
    return [{"role": "system", "content": FRONT}, {"role": "user", "content": content}]


def test_prompts_with_one_front_share_it() -> None:
    fronts = Fronts(1 << 20)
    first = fronts.of(None, FRONT + "user\nWhat is it?", asked("What is it? "))
    assert first is not None
    assert first.text == FRONT + "user\n"
    assert fronts.of(None, FRONT + "user\nAnother", asked([{"type": "text", "text": "Another"}])) is first
    assert fronts.of("tenant", FRONT + "user\nAnother", asked("Another")) is not first


def test_short_ones_and_those_without_a_user_have_none() -> None:
    fronts = Fronts(1 << 20)
    assert fronts.of(None, "short\nWhat?", asked("What?")) is None
    for messages in ([], asked(""), asked([]), asked("not in the text"), asked("system")):
        assert fronts.of(None, FRONT, messages) is None


def test_those_used_least_lately_go() -> None:
    fronts = Fronts(1 << 30)
    kept = fronts.of(None, FRONT + "0Q", asked("Q"))
    for number in range(1, 3 * BRANCHES):
        fronts.of(None, f"{FRONT}{number}xQ", asked("Q"))
        assert fronts.of(None, FRONT + "0Q", asked("Q")) is kept
    few = Fronts(4 * len(FRONT))
    few.of(None, "a" + FRONT + "Q", asked("Q"))
    first = few.of(None, "b" + FRONT + "Q", asked("Q"))
    few.of(None, "c" + FRONT + "Q", asked("Q"))
    assert few.of(None, "b" + FRONT + "Q", asked("Q")) is not first
    fronts.clear()
    assert fronts.of(None, FRONT + "0Q", asked("Q")) is not kept


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "ab"]), st.text(max_size=8), st.text(min_size=1, max_size=8))))
def test_every_front_is_one(asks: list[tuple[str, str, str]]) -> None:
    fronts = Fronts(40_000)
    for head, middle, said in asks:
        text = head * MIN_CHARS + middle + said
        front = fronts.of(None, text, asked(said))
        assert front is None or text.startswith(front.text)
