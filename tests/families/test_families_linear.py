"""The work is linear in the text: counted in steps, not in time.

A step is a call or return of a Python or C function. The work of C functions is bounded by the
lengths of their buffers, which are summed up, too. Doubling a hostile input at most doubles both.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import Family, TurnParser, families, open_parser
from services.families.grammar.scanner import Scanner
from services.families.response_template import described_family, template_name
from tests.kit.every import for_each
from tests.kit.response_templates import OWN

PROPERTIES = {
    "cmd": {"type": "string"},
    "o": {"type": "object"},
    "note": {"type": ["string", "null"]},
}
TOOLS = [ToolSpec("run", schema={"properties": PROPERTIES})]
SIZE = 200


def cost(parser: TurnParser, pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Steps, and characters that were looked at."""
    steps = looked = 0
    extend = Scanner.extend

    def counting(scanner: Scanner, text: str) -> None:
        nonlocal looked
        extend(scanner, text)
        looked += len(scanner.text)

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    with monkeypatch.context() as patch:
        patch.setattr(Scanner, "extend", counting)
        sys.setprofile(count)
        try:
            for piece in pieces:
                parser.feed(piece)
            parser.finish(FinishReason.LENGTH)
        finally:
            sys.setprofile(None)
    return steps, looked


def hostile(family: Family) -> dict[str, tuple[str, str]]:
    """Inputs to repeat, each with a text that comes once before them."""
    inputs = {
        "angles": ("", "<"),
        "brackets": ("", "[{("),
        "blanks": ("x", " \n"),
        "digits": ("", "7"),
        "quotes": ("", "\"'\\"),
        "stops": ("x", "".join(family.stops) or "</s>"),
        "prose": ("", "So it is, word by word.\n"),
    }
    if family.think:
        inputs["thoughts"] = ("", "".join(family.think))
    prefix = family.style.call_prefix(None)
    if prefix:
        inputs |= {"openers": ("", prefix), "half openers": ("", prefix[: len(prefix) // 2 + 1])}
    if family.style.call:
        call = family.style.write_call("run", {"cmd": "ls"})
        front = call[: call.index("ls")]
        back = call[call.index("ls") + 2 :]
        inputs |= {
            "calls": ("", call + family.style.joint),
            "cut calls": ("", front),
            "a value of words": (front, "some words, "),
            "a value of angles": (front, "<"),
            "a value of closers": (front, back[: len(back) // 2 + 1]),
            "a value of openers": (front, family.style.call[:9]),
            "a value of quotes": (front, "'\"\\"),
            "a value of blanks": (front, "\n "),
            "arguments": (front + back[:1], ', "k": "v"'),
            "nesting": (family.style.call_prefix("run"), '{"o": '),
        }
    return inputs


def described(name: str) -> Family:
    return described_family(template_name(json.dumps(OWN[name])))


def check_work(
    family: Family, cut: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(name: str, front: str, repeated: str, size: int) -> tuple[int, int]:
        parser = open_parser(family.name, tools=TOOLS, in_reasoning=name == "thoughts")
        return cost(parser, [front, *cut(repeated * (size // len(repeated) + 1))], monkeypatch)

    for name, (front, repeated) in hostile(family).items():
        measured(name, front, repeated, 20)  # compiles the shapes
        once, twice = (measured(name, front, repeated, size) for size in (SIZE, 2 * SIZE))
        assert twice[1] <= 2.25 * once[1] + 300, (name, "characters", once, twice)
        if twice[0] > 2.25 * once[0] + 300:  # the first characters may be cheaper than all others
            fourfold, eightfold = (measured(name, front, repeated, n * SIZE)[0] for n in (4, 8))
            first, second = fourfold - twice[0], eightfold - fourfold
            assert second <= 2.25 * first + 300, (name, twice, fourfold, eightfold)


@for_each([*list(families().values())[::4], described("list")], parts=4)
def test_twice_the_input_is_at_most_twice_the_work(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_work(family, list, monkeypatch)


@pytest.mark.slow
@for_each([*families().values(), *map(described, OWN)])
def test_twice_the_input_of_any_family_is_at_most_twice_the_work(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_work(family, list, monkeypatch)
    check_work(family, lambda text: [text], monkeypatch)


TAGS = {
    "qwen3_coder": "\n<parameter=k{}>\n",
    "glm47": "<arg_key>k{}</arg_key><arg_value>v</arg_value> x",
    "deepseek_v4": '<｜DSML｜parameter name="k{}" string="true">]',
    "minimax_m3": "]<]minimax[>[<k{}>x",
    "gemma4": '<|"|>a,b{}',
    "lfm2": "'a {}",
}
"""Text that may be a piece of a tag, in a value."""


@for_each(TAGS)
def test_four_times_as_many_different_tags_in_a_value_are_at_most_six_times_the_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = families()[name]
    call = family.style.write_call("store", {"key": "12345"})
    front, back = call.split("12345")
    tools = [ToolSpec("store", schema={"type": "object"})]

    def steps(count: int) -> int:
        value = "".join(map(TAGS[name].format, range(count)))
        parser = open_parser(name, tools=tools, in_reasoning=False)
        text = front + value + back
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        return cost(parser, pieces, monkeypatch)[0]

    steps(5)  # compiles the shapes
    assert steps(200) <= 6 * steps(50)


def test_megabyte_of_angles_takes_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed whole, and in pieces of a kilobyte: a scan by the regex engine, no loop of our own."""
    for size in (1 << 20, 1 << 10):
        parser = open_parser("qwen3_coder", tools=TOOLS, in_reasoning=False)
        steps, _ = cost(parser, ["<" * size] * ((1 << 20) // size), monkeypatch)
        assert steps < 150 * (1 << 20) // size + 400
