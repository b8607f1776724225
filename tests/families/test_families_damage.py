"""Turns with a damaged marker: a call that is dispatched is one that was written, whole."""

from services.families import Family, open_parser
from tests.families.damage import TOOLS, damaged_turn
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances, examples
from tests.kit.families import CALLING, is_misread
from tests.kit.parser_cases import Block, any_way, every_way


def parsed(name: str, raw: str, *, in_reasoning: bool) -> list[Block]:
    """The blocks, the same whole and cut in any way."""
    return every_way(
        lambda: open_parser(name, tools=TOOLS, in_reasoning=in_reasoning), raw, ways=[any_way(raw)]
    )


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
    (block,) = parsed(name, raw, in_reasoning=True)
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
    (block,) = parsed(name, raw, in_reasoning=True)
    assert (block["name"], block["complete"]) == ("bash", False)


@for_each(CALLING)
def test_damaged_call_is_dispatched_whole_or_not_at_all(family: Family) -> None:
    """Unless the damaged text is exactly what the family writes for another call."""
    for chance in chances(family.name, 300, quick=15):
        turn = damaged_turn(family, chance)
        blocks = parsed(family.name, turn.raw, in_reasoning=False)
        assert not is_misread(family, turn.raw, blocks, turn.calls), (turn, blocks)


def shown_tokens(family: Family, blocks: list[Block]) -> list[str]:
    """The control tokens of calls in reasoning and text."""
    texts = [block["text"] for block in blocks if block["type"] != "tool_use"]
    tokens: tuple[str, ...] = getattr(family.grammar, "call_tokens", ())
    return [token for token in tokens if any(token in text for text in texts)]


def test_hardly_any_damaged_call_shows_a_control_token() -> None:
    """Where the damage makes a word of it, as a quote or a blank before it does, it is shown."""
    shown = []
    for family in CALLING:
        for chance in chances(f"tokens of {family.name}", 60):
            raw = damaged_turn(family, chance).raw
            if shown_tokens(family, parsed(family.name, raw, in_reasoning=False)):
                shown.append(raw)
    assert len(shown) <= examples(60) * len(CALLING) / 100, shown
