"""The broken calls of a turn are counted with every setting, each with its cause."""

from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import BrokenCall, BrokenCallCause, FinishReason
from tests.kit.every import for_rows
from tests.parser.shard_turns import RUN, parsed

GOOD = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>\n'
UNKNOWN = GOOD.replace("run", "walk")
UNREADABLE = GOOD.replace('"ls"', "ls")
WRONG_TYPE = GOOD.replace('"ls"', "[5]")
OPEN = GOOD[:-20]


@for_rows(
    [
        (GOOD * 2, []),
        ("`<tool_call>` opens a call.", []),
        (UNKNOWN + GOOD + UNKNOWN, ["unknown_tool"] * 2),
        (UNREADABLE + GOOD, ["unreadable"]),
        (WRONG_TYPE, []),
        (GOOD + OPEN, ["unfinished"]),
        (UNKNOWN + OPEN, ["unknown_tool", "unfinished"]),
    ]
)
def test_each_broken_call_is_counted(text: str, expected: list[BrokenCallCause]) -> None:
    assert causes(text) == expected


def test_call_that_a_limit_has_cut_is_not_counted() -> None:
    assert causes(UNKNOWN + OPEN, reason=FinishReason.LENGTH) == ["unknown_tool"]


def test_call_of_a_tool_that_may_not_be_called_is_counted() -> None:
    assert causes(GOOD, allowed=["walk"]) == ["unknown_tool"]


def test_arguments_are_checked_in_turns_with_the_rule() -> None:
    """Also after the first call, and in a second attempt."""
    assert causes(GOOD + WRONG_TYPE, check_calls="schema") == ["schema"]
    again = {"check_calls": "schema", "broken_call": BrokenCall("schema", tokens=9)}
    assert causes(WRONG_TYPE, **again) == ["schema"]


def test_call_that_is_decoded_again_is_counted_alone() -> None:
    checked = {"check_calls": "syntax", "max_tokens": 9000}
    assert causes("So.\n" + UNKNOWN + UNREADABLE, **checked) == ["unknown_tool"]


def causes(text: str, **options: Any) -> list[BrokenCallCause]:
    tools = [RUN, ToolSpec("stop")]
    return parsed(text, scored=False, tools=tools, **options).blocks.broken_calls()
