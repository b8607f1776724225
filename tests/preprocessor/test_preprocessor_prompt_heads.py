"""PromptHeads of prompts, told by their text."""

from hypothesis import given
from hypothesis import strategies as st

from services.preprocessor.prompt.prompt_heads import MIN_CHARS, PromptHeads
from services.runtime.branch_cache import BRANCHES
from services.templates.chat_template import Message

FRONT = "system\n" + "Be brief. " * MIN_CHARS


def asked(content: object) -> list[Message]:
    return [{"role": "system", "content": FRONT}, {"role": "user", "content": content}]


def test_prompts_with_one_front_share_it() -> None:
    heads = PromptHeads(1 << 20)
    first = heads.find(None, FRONT + "user\nWhat is it?", asked("What is it? "))
    assert first is not None
    assert first.text == FRONT + "user\n"
    assert heads.find(None, FRONT + "user\nAnother", asked([{"type": "text", "text": "Another"}])) is first
    assert heads.find("tenant", FRONT + "user\nAnother", asked("Another")) is not first


def test_short_ones_and_those_without_a_user_have_none() -> None:
    heads = PromptHeads(1 << 20)
    assert heads.find(None, "short\nWhat?", asked("What?")) is None
    for messages in ([], asked(""), asked([]), asked("not in the text"), asked("system")):
        assert heads.find(None, FRONT, messages) is None


def test_those_used_least_lately_go() -> None:
    heads = PromptHeads(1 << 30)
    kept = heads.find(None, FRONT + "0Q", asked("Q"))
    for number in range(1, 3 * BRANCHES):
        heads.find(None, f"{FRONT}{number}xQ", asked("Q"))
        assert heads.find(None, FRONT + "0Q", asked("Q")) is kept
    few = PromptHeads(4 * len(FRONT))
    few.find(None, "a" + FRONT + "Q", asked("Q"))
    first = few.find(None, "b" + FRONT + "Q", asked("Q"))
    few.find(None, "c" + FRONT + "Q", asked("Q"))
    assert few.find(None, "b" + FRONT + "Q", asked("Q")) is not first
    heads.clear()
    assert heads.find(None, FRONT + "0Q", asked("Q")) is not kept


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "ab"]), st.text(max_size=8), st.text(min_size=1, max_size=8))))
def test_every_front_is_one(asks: list[tuple[str, str, str]]) -> None:
    heads = PromptHeads(40_000)
    for head, middle, said in asks:
        text = head * MIN_CHARS + middle + said
        front = heads.find(None, text, asked(said))
        assert front is None or text.startswith(front.text)
