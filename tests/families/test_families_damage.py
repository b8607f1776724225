"""Turns with a damaged marker: a call that is dispatched is one that was written, whole."""

import random

import pytest

from services.families import Family, open_parser
from tests.families.damage import TOOLS, DamagedTurn, damaged_turn
from tests.kit.every import for_each, for_rows
from tests.kit.families import CALLING
from tests.kit.parser_cases import Block, fold, run


def parsed(turn: DamagedTurn, chance: random.Random) -> list[Block]:
    """The blocks, the same however the text is cut."""
    cuts = sorted(chance.sample(range(len(turn.raw) + 1), min(6, len(turn.raw))))
    pieces = [turn.raw[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    whole, other = (
        fold(run(open_parser(turn.family.name, tools=TOOLS, in_reasoning=False), cut))
        for cut in ([turn.raw], pieces)
    )
    assert whole == other, turn.raw
    return whole


def rewritten(family: Family, blocks: list[Block]) -> str:
    """What the family writes for these blocks, without white space."""
    style = family.style
    write = {"reasoning": style.write_reasoning, "text": style.write_text}
    parts = [
        style.write_call(block["name"], block["input"])
        if block["type"] == "tool_use"
        else write[block["type"]](block["text"])
        for block in blocks
        if block["complete"]
    ]
    return "".join(style.joint.join(parts).split())


def check(turn: DamagedTurn, chance: random.Random) -> None:
    """Each call that completes is one of those that were written, in their order, unless the
    damaged text is exactly what the family writes for another call."""
    blocks = parsed(turn, chance)
    calls = [block for block in blocks if block["type"] == "tool_use" and block["complete"]]
    rest = iter(turn.calls)
    for call in calls:
        if not any((call["name"], call["input"]) == other for other in rest):
            is_written = rewritten(turn.family, blocks) == "".join(turn.raw.split())
            assert is_written, (turn.damage, turn.raw, call, turn.calls)


LS = ("bash", {"command": "ls"})
DSML = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">ls'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
FUNCTION = (
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)


@for_rows(
    [
        ("deepseek_v41", DSML, LS),
        ("deepseek_v41", DSML.replace("</｜DSML｜", "</｜DSML｜ "), LS),
        ("deepseek_v4", DSML.replace("｜DSML｜", "｜DSML｜ "), LS),
        ("gigachat35", DSML.replace("｜DSML｜", "｜GCML｜ "), LS),
        ("qwen3_coder", FUNCTION.replace("=bash>", "=bash >"), LS),
        ("glm47", '<tool_call>bash>{"command": "ls"}</tool_call>', LS),
        ("glm45", '<tool_call>bash>\n{"command": "ls"}\n</tool_call>', LS),
    ]
)
def test_other_spelling_of_a_tag_is_read(name: str, raw: str, call: tuple[str, object]) -> None:
    (block,) = fold(run(open_parser(name, tools=TOOLS, in_reasoning=True), [raw]))
    assert (block["name"], block["input"]) == call


@for_rows(
    [
        ("step3p5", FUNCTION.replace("=bash>", " bash>")),
        ("qwen3_coder", "<tool_call>\n<function=bash>\nls -la\n</function>\n</tool_call>"),
        ("deepseek_v4", DSML.replace("parameter name", "param name")),
        ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\nls -la'),
        (
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="bash">ls</invoke>\n</minimax:tool_call>',
        ),
        ("glm47", "<tool_call>bash ls -la</tool_call>"),
    ]
)
def test_call_that_names_a_tool_and_cannot_be_read_never_completes(name: str, raw: str) -> None:
    (block,) = fold(run(open_parser(name, tools=TOOLS, in_reasoning=True), [raw]))
    assert (block["name"], block["complete"]) == ("bash", False)


@for_each(CALLING)
def test_damaged_call_is_dispatched_whole_or_not_at_all(family: Family) -> None:
    chance = random.Random(f"{family.name} 1")
    for _ in range(15):
        check(damaged_turn(family, chance), chance)


def shown_tokens(family: Family, blocks: list[Block]) -> list[str]:
    """The control tokens of calls in reasoning and text."""
    texts = [block["text"] for block in blocks if block["type"] != "tool_use"]
    tokens: tuple[str, ...] = getattr(family.grammar, "call_tokens", ())
    return [token for token in tokens if any(token in text for text in texts)]


def test_hardly_any_damaged_call_shows_a_control_token() -> None:
    """Where the damage makes a word of it, as a quote or a blank before it does, it is shown."""
    shown = []
    for family in CALLING:
        chance = random.Random(family.name)
        for turn in (damaged_turn(family, chance) for _ in range(20)):
            blocks = fold(
                run(open_parser(family.name, tools=TOOLS, in_reasoning=False), [turn.raw])
            )
            if shown_tokens(family, blocks):
                shown.append(turn.raw)
    assert len(shown) <= 20 * len(CALLING) / 100, shown


@pytest.mark.slow
@for_each(CALLING)
def test_none_of_many_damaged_calls_is_dispatched_otherwise(family: Family) -> None:
    chance = random.Random(f"{family.name} 2")
    for _ in range(300):
        check(damaged_turn(family, chance), chance)
