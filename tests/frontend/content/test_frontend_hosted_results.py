"""Results of hosted tools come after the message with their calls, in the order of the calls."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import Call, Message, Result, Text
from services.frontend.content.hosted_tools import insert_results

ids = st.sampled_from("abcd")
messages = st.builds(
    lambda names: Message("assistant", [Call(name, "f", "{}") for name in names]),
    st.lists(ids, max_size=3),
)
results = st.builds(lambda name, text: Result(name, [Text(text)]), ids, st.text(max_size=3))


def one_by_one(messages: list[Message], result: Result) -> list[Message]:
    """The messages with one more result."""
    for at in range(len(messages) - 1, -1, -1):
        calls = [part.call_id for part in messages[at].parts if isinstance(part, Call)]
        if result.call_id in calls:
            has_answers = at + 1 < len(messages) and messages[at + 1].role == "tool"
            answers = (
                [part for part in messages[at + 1].parts if isinstance(part, Result)]
                if has_answers
                else []
            )
            order = {call_id: index for index, call_id in enumerate(calls)}
            answers = sorted(
                [*answers, result], key=lambda answer: order.get(answer.call_id, len(order))
            )
            return [
                *messages[: at + 1],
                Message("tool", [*answers]),
                *messages[at + 1 + has_answers :],
            ]
    return messages


@given(st.lists(messages | results, max_size=8))
def test_results_are_placed_as_if_each_were_added_when_it_comes(
    arrivals: list[Message | Result],
) -> None:
    expected: list[Message] = []
    read: list[Message] = []
    added: list[tuple[Result, int]] = []
    for arrival in arrivals:
        if isinstance(arrival, Message):
            expected = [*expected, arrival]
            read.append(arrival)
        else:
            expected = one_by_one(expected, arrival)
            added.append((arrival, len(read)))
    assert insert_results(read, added) == expected
