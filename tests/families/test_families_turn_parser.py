"""Turns of well-known families, event by event; forced calls; texts beside broken markers."""

import json
from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.families import Family, TurnParser, open_parser
from services.families.grammar.markup import Markup
from services.families.response_template import described_family, template_name
from tests.kit.described_turns import templates
from tests.kit.every import for_each, for_rows
from tests.kit.families import CALLING
from tests.kit.parser_cases import any_cut, fold, run

TOOLS = [
    ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}})
]
CALL = "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>"


def opened(
    family: str = "qwen3_coder", *, in_reasoning: bool = False, **options: Any
) -> TurnParser:
    return open_parser(
        family, tools=options.pop("tools", TOOLS), in_reasoning=in_reasoning, **options
    )


def texts(parser: TurnParser, *pieces: str) -> list[str]:
    return [block["text"] for block in fold(run(parser, pieces))]


def test_plain_text_is_sent_at_once() -> None:
    parser = opened()
    assert parser.feed("Hello,") == [BlockStart(0, "text"), Delta(0, 0, "Hello,")]
    assert parser.feed(" world") == [Delta(0, 6, " world")]
    assert parser.feed("") == []
    assert parser.feed("!\n") == [Delta(0, 12, "!")]
    assert parser.feed("\n") == []
    assert parser.feed("So") == [Delta(0, 13, "\n\nSo")]
    assert parser.finish(FinishReason.STOP) == [BlockStop(0, True, 17)]


def test_a_call_starts_when_the_grammar_has_confirmed_it_and_ends_with_its_closer() -> None:
    parser = opened()
    assert parser.feed("<tool_call>\n<function=run>\n") == []
    assert parser.feed("<parameter=") == [BlockStart(0, "tool_use", "run")]
    assert parser.feed("cmd>\nl") == [Delta(0, 0, '{"cmd": "l')]
    assert parser.feed("s") == [Delta(0, 10, "s")]
    assert parser.feed("\n</parameter>\n</function") == []
    assert parser.feed(">") == [Delta(0, 11, '"}'), BlockStop(0, True, 13)]
    assert parser.feed("\n</tool_call>") == []
    assert parser.finish(FinishReason.STOP) == []


def test_in_reasoning_follows_the_blocks() -> None:
    parser = opened(in_reasoning=True)
    assert parser.in_reasoning
    parser.feed("Hm.\n</think>")
    assert not parser.in_reasoning
    parser.feed(CALL + "\n<think>")
    assert parser.in_reasoning
    parser.feed("So " + CALL[:50])
    assert not parser.in_reasoning
    parser.feed(CALL[50:])
    assert not parser.in_reasoning


def test_reasoning_that_a_call_ended_may_still_be_closed() -> None:
    assert texts(opened(in_reasoning=True), f"Plan.\n{CALL}\nmore\n</think>\nSo `</think>`.") == [
        "Plan.",
        '{"cmd": "ls"}',
        "more",
        "So `</think>`.",
    ]


@for_each(["  indented", "\tindented"])
def test_blank_lines_before_a_block_are_framing_and_indentation_is_not(text: str) -> None:
    assert texts(opened(in_reasoning=True), f"\n{text}\n</think>\n\n \n{text}\n") == [text, text]


def test_marker_is_text_without_callable_tools() -> None:
    assert texts(opened(tools=[]), f"So: {CALL}") == [f"So: {CALL}"]
    assert texts(opened(calls_as_text=True), CALL) == [CALL]
    assert texts(open_parser("hermes"), "</tool_call>x") == ["</tool_call>x"]


def test_prefix_is_not_repeated() -> None:
    assert texts(opened(prefix="The answer is"), " 42.") == [" 42."]
    assert texts(opened(prefix="The answer is "), "42.") == ["42."]
    assert texts(opened(in_reasoning=True, prefix="I think"), " so.\n</think>\nYes.") == [
        " so.",
        "Yes.",
    ]
    assert texts(opened(prefix=f"Look.\n{CALL}\n"), "Done.") == ["Done."]


@for_rows(
    [
        ("qwen3_coder", "<tool_call>\n<function=run>\n", CALL),
        ("qwen3_coder", "<tool_call>\n<function=", CALL),
        (
            "hermes",
            'So.<tool_call>{"name": "run", "arguments": {"cmd": "l',
            'So.<tool_call>{"name": "run", "arguments": {"cmd": "ls"}}</tool_call>',
        ),
    ]
)
def test_a_forced_call_belongs_to_the_turn(family: str, prefix: str, whole: str) -> None:
    (block,) = fold(run(opened(family, prefix=prefix), [whole.removeprefix(prefix)]))
    assert (block["name"], block["input"], block["complete"]) == ("run", {"cmd": "ls"}, True)


@for_each([family for family in CALLING if isinstance(family.grammar, Markup)])
def test_prompt_of_a_forced_call_is_not_shown_where_the_model_writes_something_else(
    family: Family,
) -> None:
    for name in (None, "run"):
        prefix = family.style.call_prefix(name)
        for answer in ("Hello there.", "<b>no</b>", "\n\nNo.", '{"a": 1}'):
            for pieces in ([answer], list(answer)):
                blocks = fold(run(opened(family.name, prefix=prefix), pieces))
                shown = "".join(b["text"] for b in blocks if b["type"] != "tool_use")
                assert shown.strip() in answer, (name, pieces)


DESCRIBED = [described_family(template_name(json.dumps(one))) for one in templates().values()]


@for_each([*CALLING, *(family for family in DESCRIBED if family.style.call)])
def test_every_family_can_be_made_to_call(family: Family) -> None:
    """The text that forces a call and the model's text after it are that call."""
    call = family.style.write_call("run", {"cmd": "ls -l", "n": 3})
    for name in ("run", None):
        prefix = family.style.call_prefix(name)
        assert call.startswith(prefix), name
        (block,) = fold(run(opened(family.name, prefix=prefix), any_cut(call.removeprefix(prefix))))
        assert (block["name"], block["complete"]) == ("run", True)
        assert block["input"] == {"cmd": "ls -l", "n": 3}


def test_only_a_model_that_stopped_completes_an_open_call() -> None:
    cut = CALL.partition("</function>")[0]
    for reason in FinishReason:
        (block,) = fold(run(opened(), [cut], reason))
        assert block["complete"] is (reason is FinishReason.STOP), reason


QWEN = "qwen3_coder"


@for_rows(
    [
        # a marker that is incomplete at the end is text
        ("kimi_k2", "<|too", ["<|too"]),
        ("hermes", "Write <tool_call>", ["Write <tool_call>"]),
        # control tokens are dropped without their call, and after a call that cannot be read
        ("minimax_m3", "]<]minimax[>[<", []),
        ("lfm2", "<|tool_call_start|>[<|to_c", ["[<|to_c"]),
        ("kimi_k2", "<|tool_call_begin|> \n<|tool_call_argument_begin|>{}", ["{}"]),
        ("deepseek_v4", '<｜DSML｜to <｜DSML｜x "</｜DSML｜y>', ['to x "']),
        ("gpt_oss", "<|channel|>final<|message|>So <|constrain|>json {}", ["So json {}"]),
        (QWEN, "Done.\n</tool_call> x", ["Done.\n x"]),
        (QWEN, "<tool_call>\n<function=x>y</tool_call>", ["<function=x>y"]),
        ("hermes", '<tool_call>{"key": 1}</tool_call>', ['{"key": 1}']),
        ("hermes", '<tool_call>{"key": `<tool_call>', ['{"key": `']),
        (QWEN, CALL[:-3], ['{"cmd": "ls"}']),
        # a stop token counts only at the end
        (QWEN, "Hi.<|im_end|>\n", ["Hi."]),
        (QWEN, "ChatML has <|im_end|>, always.", ["ChatML has <|im_end|>, always."]),
        (QWEN, "<|im_end|>", []),
        # a closer without an opener is dropped at the start and at the end, and divides texts
        (QWEN, "</tool_call>\nx", ["x"]),
        (QWEN, "</think>\n\nx", ["x"]),
        (QWEN, "Done.</think>", ["Done."]),
        (QWEN, "Done.\n</tool_call>\n", ["Done."]),
        (QWEN, "So it is.\n</think>\n\nDone.", ["So it is.", "Done."]),
        # in running text it is text
        *[
            (QWEN, raw, [raw])
            for raw in (
                "Done</think>, I say.",
                "Write <think>\nso\n</think>\nand done",
                "Write <tool_call>it</tool_call>",
                "It is `<tool_call>`.\n<tool_call> opens it, </tool_call> closes it",
                "```\n<tool_call>\n```",
            )
        ],
    ]
)
def test_texts_of_a_turn(family: str, raw: str, expected: list[str]) -> None:
    assert texts(opened(family), raw) == expected


def test_call_in_code_is_not_run_after_one_that_could_not_be_read() -> None:
    raw = f'<tool_call>{{"key"]</tool_call>\nSo it is:\n```\n{CALL}\n```\nDone.'
    blocks = fold(run(opened(QWEN), [raw]))
    assert [block["type"] for block in blocks] == ["text"]
