"""No text of a value changes, cuts or completes a call: what each family and each template writes
is read back."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.conversation import ToolSpec
from services.families import Family, families, open_parser
from services.families.grammar.channels import Channels
from services.families.readers.parameters import Parameters
from services.families.writing import Tags
from tests.kit.every import for_each
from tests.kit.families import CALLING
from tests.kit.parser_cases import Block, fold, run, words

STRING = {"type": "string"}
TOOLS = [
    ToolSpec(
        "write", schema={"properties": {"content": STRING, "filePath": STRING, "mode": STRING}}
    ),
    ToolSpec("bash", schema={"properties": {"command": STRING, "timeout": {"type": "number"}}}),
    ToolSpec("read", schema={"properties": {"path": STRING, "limit": {"type": "integer"}}}),
    ToolSpec("ping", schema={"properties": {}}),
]
LS: tuple[str, dict[str, Any]] = ("bash", {"command": "ls"})
EXAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    LS,
    ("write", {"content": "x", "filePath": "/a"}),
    ("read", {"path": "/p", "limit": 3}),
    ("ping", {}),
)
TEXTS = {"write": ("content", "filePath"), "bash": ("command",), "read": ("path",)}
OPTIONAL = {"write": "mode", "bash": "timeout", "read": "limit"}
PLAIN = [*" \n`'\"\\{}[](),=<é", "\n\n", "```\n", "\\n", "x: 1", " names it.", "The end."]
PLAIN += ["5", "null", "<b>", "</b>"]
OTHERS = "hermes qwen3_coder glm47 gpt_oss minimax_m2 deepseek_v4 kimi_k2 mistral"
TAGGED = [family for family in CALLING if isinstance(family.style.arguments, Tags)]
QUOTES = {"gemma4": '<|"|>', "functiongemma": "<escape>"}
"""Tokens that stand for a quote in a string, so that a string cannot hold them."""


def example(family: Family, name: str = "bash") -> str:
    """A call as text."""
    return family.style.write_call(*next(call for call in EXAMPLES if call[0] == name))


def around(family: Family, key: str) -> tuple[str, str]:
    """The text before and after a string argument."""
    assert isinstance(family.style.arguments, Tags)
    return family.style.arguments.around(key, "string")


def ends(family: Family) -> str:
    """All that closes a call after its last argument."""
    return family.style.call.partition("{arguments}")[2].replace("{name}", "bash")


def pieces(family: Family) -> list[str]:
    """What the family's calls are made of: markers, halves of calls, arguments, whole calls, also
    of other families."""
    calls = [family.style.write_call(*call) for call in EXAMPLES]
    own = {
        word for call in calls for word in words(call) if not word.isalnum() and not word.isspace()
    }
    own |= {*calls, *family.markers, *family.stops, *(family.think or ())}
    own |= {family.style.call_prefix(None), ends(family)}
    for call in calls[:2]:
        own |= {call[: len(call) // 2], call[len(call) // 2 :]}
    if family in TAGGED:
        for key in ("content", "filePath", "mode", "command"):
            before, after = around(family, key)
            own |= {before, before.strip(), after, after.strip()}
            own |= {f"{before}v{after}", after + ends(family)}
    return sorted(filter(None, own | {example(families()[name]) for name in OTHERS.split()}))


def any_value(chance: random.Random, of: list[str]) -> str:
    parts = [
        chance.choice(of if chance.random() < 0.6 else PLAIN)
        for _ in range(chance.choice((1, 1, 2, 3, 4, 6)))
    ]
    value = chance.choice(("", "", "\n", " ")).join(parts)
    return f"\n{value}\n" if chance.random() < 0.1 else value


def any_call(chance: random.Random, of: list[str]) -> tuple[str, dict[str, Any]]:
    name = chance.choice(("write", "write", "bash", "read"))
    arguments: dict[str, Any] = {key: any_value(chance, of) for key in TEXTS[name]}
    if chance.random() < 0.5:
        key = OPTIONAL[name]
        arguments[key] = any_value(chance, of) if key == "mode" else chance.choice((1, 5))
    keys = list(arguments)
    chance.shuffle(keys)
    return name, {key: arguments[key] for key in keys}


def parsed(family: Family, raw: str, chance: random.Random | None = None) -> list[Block]:
    """The blocks, the same whole, per character, and per token or at random cuts."""
    pieces = words(raw)
    if chance is not None:
        at = sorted(chance.sample(range(len(raw) + 1), min(8, len(raw))))
        pieces = [raw[i:j] for i, j in zip([0, *at], [*at, None], strict=True)]
    results = [
        fold(run(open_parser(family.name, tools=TOOLS), cut)) for cut in ([raw], raw, pieces)
    ]
    assert all(result == results[0] for result in results), raw
    return results[0]


def completed(blocks: list[Block]) -> list[tuple[str, Any]]:
    """The calls that would be dispatched."""
    calls = [block for block in blocks if block["type"] == "tool_use" and block["complete"]]
    return [(block["name"].removeprefix("functions."), block["input"]) for block in calls]


def same(family: Family, call: tuple[str, Any], other: tuple[str, Any]) -> bool:
    quote = json.dumps(QUOTES.get(family.name, '"'))[1:-1]
    ours, theirs = (json.dumps(one).replace(quote, '\\"') for one in (call, other))
    return ours == theirs


def squeezed(text: str) -> str:
    return "".join(text.split())


Write = Callable[[tuple[str, dict[str, Any]]], str]


def is_ambiguous(
    family: Family, raw: str, blocks: list[Block], written: list[tuple[str, Any]], write: Write
) -> bool:
    """Whether the same text would be written for these blocks, or a value has the end of an
    argument and then, after nothing but closers, the start of another block."""
    style, quote = family.style, QUOTES.get(family.name, '"')
    prose = {"reasoning": style.write_reasoning, "text": style.write_text}
    parts = [
        write((block["name"].removeprefix("functions."), block["input"]))
        if block["type"] == "tool_use"
        else prose[block["type"]](block["text"])
        for block in blocks
        if block["complete"]
    ]
    if squeezed(style.joint.join(parts)).replace(quote, '"') == squeezed(raw).replace(quote, '"'):
        return True
    end = QUOTES.get(family.name, "]<]minimax[>[</")
    if family in TAGGED:
        end = around(family, "command")[1].strip()
    others = family.grammar.ends if isinstance(family.grammar, Channels) else ()
    closers = (word for word in (*words(ends(family) or "</function>"), *others) if word.strip())
    starts = "|".join(map(re.escape, (*closers, *openings(family))))
    seam = re.compile(rf"{re.escape(end)}[^<]*?(?:{starts})")
    return any(seam.search("\n".join(map(str, arguments.values()))) for _, arguments in written)


def openings(family: Family) -> Iterator[str]:
    """What another block may begin with."""
    front = family.style.call.partition("{name}")[0]
    yield front
    yield re.split("(?<=>)", front)[0]
    yield from re.findall(r"<[^<]*\Z", front)
    yield from filter(None, (family.style.joint, *(family.think or ())[:1]))


def check(
    family: Family, written: list[tuple[str, Any]], write: Write, chance: random.Random
) -> None:
    """Each call that completes is one of those that were written, in their order."""
    raw = family.style.joint.join(map(write, written))
    blocks = parsed(family, raw, chance)
    rest = iter(written)
    for call in completed(blocks):
        if not any(same(family, call, other) for other in rest):
            assert is_ambiguous(family, raw, blocks, written, write), (raw, written, blocks)
            return


def sample(family: Family, seed: int, count: int) -> None:
    chance, of = random.Random(f"{family.name} {seed}"), pieces(family)
    for _ in range(count):
        written = [any_call(chance, of), *([LS] if chance.random() < 0.2 else [])]
        check(family, written, lambda call: family.style.write_call(*call), chance)


@for_each(CALLING)
def test_no_text_of_a_value_makes_another_call(family: Family) -> None:
    sample(family, 0, 8)


@pytest.mark.slow
@for_each(CALLING)
def test_no_text_of_a_value_makes_another_call_in_many_examples(family: Family) -> None:
    sample(family, 1, 400)


SHOWN = (
    "One:\n{example}",
    "{example}\n{example}",
    "First {example} then {nested}.",
    "```\n{example}\n```\n",
    "\n\n{nested}\n\n",
)


def both_orders(content: str) -> list[dict[str, Any]]:
    """Arguments in which the content is the first or the last one."""
    return [{"content": content, "filePath": "/a"}, {"filePath": "/a", "content": content}]


@for_each(CALLING)
def test_value_that_shows_whole_calls_is_read_back(family: Family) -> None:
    """Repeated, nested, at both ends, in several arguments."""
    nested = family.style.write_call(
        "write", {"content": f"See {example(family)}.", "filePath": "/b"}
    )
    for form in SHOWN:
        value = form.format(example=example(family), nested=nested)
        for arguments in (
            {"content": value, "filePath": "/a"},
            {"filePath": value, "content": value},
        ):
            raw = family.style.write_call("write", arguments) + family.style.joint + example(family)
            assert completed(parsed(family, raw)) == [("write", arguments), LS]


@for_each(TAGGED)
def test_value_that_names_the_tags_of_its_call_is_read_back(family: Family) -> None:
    """Two arguments without their call never become two arguments."""
    for tag in (*around(family, "filePath"), *around(family, "zzz"), *words(ends(family))):
        for arguments in both_orders(f"The tag `{tag.strip()}` names it."):
            raw = family.style.write_call("write", arguments)
            assert completed(parsed(family, raw)) == [("write", arguments)], tag
    (path, path_end), (mode, mode_end) = around(family, "filePath"), around(family, "mode")
    content = f"As {path.strip()}x{path_end.strip()}{mode.strip()}y{mode_end.strip()} says."
    for arguments in both_orders(content):
        assert completed(parsed(family, family.style.write_call("write", arguments))) == []


@for_each(CALLING)
def test_call_with_an_argument_twice_never_completes(family: Family) -> None:
    once = family.style.write_call(
        "write", {"content": "a", "contenu": "b", "filePath": example(family)}
    )
    twice = once.replace("contenu", "content")
    assert len(completed(parsed(family, once))) == 1
    assert completed(parsed(family, twice)) == []
    assert completed(parsed(family, twice + family.style.joint + example(family))) in ([], [LS])


@for_each(TAGGED)
def test_text_after_a_call_is_searched_for_the_end_of_another_one_in_linear_time(
    family: Family,
) -> None:
    """A pattern that can split a word in several ways would not end, one that begins at each end of
    a call takes long."""
    for call in getattr(family.grammar, "calls", ()):
        if isinstance(call.body, Parameters):
            end = around(family, "command")[1] + ends(family)
            assert call.body.find_stray_end(f"{end} {'words ' * 3_000}")
            assert not call.body.find_stray_end(f"{end} {'words ' * 3_000}: no.")
            assert call.body.find_stray_end(f"{end} a " * 5_000)
            assert not call.body.find_stray_end(f"{end} a " * 5_000 + ": no.")
