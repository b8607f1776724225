"""No text of a value changes, cuts or completes a call: what each family and each template writes
is read back."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from schemas.conversation import ToolSpec
from services.families import Family, families, open_parser
from services.families.grammar.channels import Channels
from services.families.readers.parameters import Parameters
from services.families.writing import Tags
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.kit.families import CALLING, QUOTES, completed, is_misread, written
from tests.kit.parser_cases import Block, any_way, every_way, words

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


def any_value(chance: Random, of: list[str]) -> str:
    parts = [
        chance.choice(of if chance.random() < 0.6 else PLAIN)
        for _ in range(chance.choice((1, 1, 2, 3, 4, 6)))
    ]
    value = chance.choice(("", "", "\n", " ")).join(parts)
    return f"\n{value}\n" if chance.random() < 0.1 else value


def any_call(chance: Random, of: list[str]) -> tuple[str, dict[str, Any]]:
    name = chance.choice(("write", "write", "bash", "read"))
    arguments: dict[str, Any] = {key: any_value(chance, of) for key in TEXTS[name]}
    if chance.random() < 0.5:
        key = OPTIONAL[name]
        arguments[key] = any_value(chance, of) if key == "mode" else chance.choice((1, 5))
    keys = list(arguments)
    chance.shuffle(keys)
    return name, {key: arguments[key] for key in keys}


def parsed(family: Family, raw: str) -> list[Block]:
    """The blocks, the same whole, per character, and cut in any way."""
    ways = ("characters", any_way(raw))
    return every_way(lambda: open_parser(family.name, tools=TOOLS), raw, ways=ways)


def has_seam(family: Family, calls: list[tuple[str, Any]]) -> bool:
    """Whether a value has the end of an argument and then, after nothing but closers, the start of
    another block."""
    end = QUOTES.get(family.name, "]<]minimax[>[</")
    if family in TAGGED:
        end = around(family, "command")[1].strip()
    others = family.grammar.ends if isinstance(family.grammar, Channels) else ()
    closers = (word for word in (*words(ends(family) or "</function>"), *others) if word.strip())
    starts = "|".join(map(re.escape, (*closers, *openings(family))))
    seam = re.compile(rf"{re.escape(end)}[^<]*?(?:{starts})")
    return any(seam.search("\n".join(map(str, arguments.values()))) for _, arguments in calls)


def openings(family: Family) -> Iterator[str]:
    """What another block may begin with."""
    front = family.style.call.partition("{name}")[0]
    yield front
    yield re.split("(?<=>)", front)[0]
    yield from re.findall(r"<[^<]*\Z", front)
    yield from filter(None, (family.style.joint, *(family.think or ())[:1]))


@for_each(CALLING)
def test_no_text_of_a_value_makes_another_call(family: Family) -> None:
    of = pieces(family)
    for chance in chances(family.name, 400, quick=8):
        calls = [any_call(chance, of), *([LS] if chance.random() < 0.2 else [])]
        raw = written(family, *calls)
        blocks = parsed(family, raw)
        misread = is_misread(family, raw, blocks, calls) and not has_seam(family, calls)
        assert not misread, (raw, calls, blocks)


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
            assert completed(parsed(family, raw)) == [("write", arguments), LS], form


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
