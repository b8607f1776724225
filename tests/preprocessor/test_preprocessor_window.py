"""The messages that stand for all others."""

from services.preprocessor.prompt.window import is_user, window
from services.templates.chat_template import Message


def make(shape: str) -> list[Message]:
    """A message a letter: s system, u user, a answer, c call, A and C the same with reasoning, t result."""
    roles = {"s": "system", "u": "user", "t": "tool"}
    made: list[Message] = []
    for number, letter in enumerate(shape):
        message: Message = {"role": roles.get(letter, "assistant"), "content": f"{letter}{number}"}
        if letter in "AC":
            message["reasoning_content"] = "so"
        if letter in "cC":
            message["tool_calls"] = [{"id": str(number)}]
        made.append(message)
    return made


def chosen(shape: str) -> str:
    return " ".join(message["content"] for message in window(make(shape), len(shape)))


def test_the_front_the_ends_and_the_users_last_word() -> None:
    assert chosen("su") == "s0 u1"
    assert chosen("suct") == "s0 u1 c2 t3"
    assert chosen("suctctct") == "s0 u1 c2 t3 c6 t7"
    assert chosen("suctctauctctct") == "s0 u1 c4 t5 a6 u7 c8 t9 c12 t13"


def test_reasoning_is_shown_on_both_sides_of_the_users_last_word() -> None:
    assert chosen("suCtctctauctCtctct") == "s0 u1 C2 t3 c6 t7 a8 u9 c10 t11 C12 t13 c16 t17"


def test_what_was_chosen_stands_for_the_whole() -> None:
    front, more = "suCtctctauctCtctct", "ctAuctctct"
    kept = window(make(front), len(front))
    whole = window(make(front + more), len(front + more))
    later = window([*kept, *make(front + more)[len(front) :]], len(kept) + len(more))
    assert {(m["role"], "reasoning_content" in m) for m in later} == {
        (m["role"], "reasoning_content" in m) for m in whole
    }
    assert later[-6:] == whole[-6:]


def test_a_result_in_the_users_place_is_not_the_users_word() -> None:
    assert is_user({"role": "user", "content": "hi"})
    assert is_user({"role": "user", "content": [{"type": "text", "text": "hi"}]})
    assert not is_user({"role": "user", "content": "<tool_response>\nok\n</tool_response>"})
    assert not is_user({"role": "user", "content": [{"type": "text", "text": "<tool_response>\nok"}]})
    assert not is_user({"role": "tool", "content": "hi"})
