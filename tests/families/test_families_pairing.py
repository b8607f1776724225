"""Pairs of families: every one that fits reads the reasoning of the second around the calls of the
first."""

import pytest

from services.families import Family, UnknownFamily, families, find_family, find_reasoning_family
from services.families.grammar.markup import Markup
from tests.kit.every import for_each, for_rows
from tests.kit.families import PING, RUN, read, text, thought

CALLS = [found for found in families().values() if found.style.call or found.name == "plain"]
REASONS = [found for found in families().values() if found.style.reasoning]
OWN_LINE = {"llama3_json", "pythonic", "xlam", "llama4_pythonic", "gigachat3"}
"""Nothing but its place marks a call of theirs."""


def fits(calls: Family, reasoning: Family) -> bool:
    if isinstance(calls.grammar, Markup) and isinstance(reasoning.grammar, Markup):
        return True
    return type(calls.grammar) is type(reasoning.grammar) and calls.think == reasoning.think


FIRST = {found.think: found for found in reversed(REASONS)}
"""One family for each pair of marks; the other families' pairs are slow to run and hardly
differ."""
READING = [found for found in REASONS if found.name != "minimax_m2_append_think"]


def check_pair(calls: Family, reasoning: Family) -> None:
    """Blocks of reasoning around a call, and the reasoning that a prompt opened."""
    pair = find_family(f"{calls.name}+{reasoning.name}")
    opener, _, closer = reasoning.style.reasoning.partition("{text}")
    line = "\n" if calls.name in OWN_LINE else ""
    joint, call = calls.style.joint, pair.style.write_call(*RUN) if calls.style.call else ""
    first, second = pair.style.write_reasoning("A < b."), pair.style.write_reasoning("Then.")
    made = [RUN] if call else []
    answer = pair.style.write_text("Done.")
    found = read(pair.name, joint.join(filter(None, (first, line + call, answer))))
    assert found == [thought("A < b."), *made, text("Done.")]
    if call:
        ping = pair.style.write_call(*PING)
        found = read(pair.name, joint.join((first, line + call, second, line + ping)))
        assert found == [thought("A < b."), RUN, thought("Then."), PING]
        assert read(pair.name, joint.join((opener + "Plan.\n", call))) == [thought("Plan."), RUN]
    if not joint:
        assert pair.think
        assert pair.opens_reasoning(f"x{pair.think[0]}\n")
        found = read(pair.name, f"Plan.{closer}{answer}", in_reasoning=True)
        assert found == [thought("Plan."), text("Done.")]
        if calls.think and calls.think != reasoning.think and calls.name != "granite":
            other = calls.style.reasoning.replace("{text}", "x").strip()
            kept = read(pair.name, f"So {other} is.")
            assert kept == [text(f"So {other} is.")], "the other family's marks are text"


@for_each(CALLS)
def test_a_pair_reads_reasoning_around_calls(calls: Family) -> None:
    """The calls of each family, once, with reasoning of another in turn."""
    fitting = [found for found in FIRST.values() if found in READING and fits(calls, found)]
    check_pair(calls, fitting[CALLS.index(calls) % len(fitting)])


@for_rows(
    [
        ("hermes+gpt_oss", "goes with the calls of gpt_oss, beam"),
        ("deepseek_r1+hermes", "deepseek_r1 reads no tool calls; they are read by qwen3_coder, "),
        ("hermes+plain", "plain reads no reasoning; reasoning is read by qwen3_coder, "),
    ]
)
def test_pair_that_does_not_fit_is_refused_with_candidates(pair: str, message: str) -> None:
    with pytest.raises(UnknownFamily, match=message):
        find_family(pair)


def test_a_pair_that_is_one_family_is_that_family() -> None:
    assert find_family("qwen3_coder+qwen3") is families()["qwen3_coder"]
    assert find_family("llama3_json+deepseek_r1") is find_family("llama3+basic")
    assert find_family("beam+gpt-oss") is families()["beam"]
    assert find_family("none+kimi").models == "calls of plain, reasoning of kimi_thinking"


def test_reasoning_parser_names_find_their_family() -> None:
    assert find_reasoning_family("qwen3").name == "qwen3_coder"
    assert find_reasoning_family("hermes").name == "hermes"
    assert find_reasoning_family("deepseek-r1").name == "deepseek_r1"
    with pytest.raises(UnknownFamily, match="did you mean deepseek_r1"):
        find_reasoning_family("deepseek_r11")
    with pytest.raises(UnknownFamily, match="did you mean"):
        find_family("hermes+deepseek_r11")
