"""No text of a value changes, cuts or completes a call: what each family and each template writes
is read back."""

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.conversation import Call, ToolSpec
from schemas.errors import Invalid
from services.families import Family, families, open_parser
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.readers.parameters import Parameters
from services.families.writing import Tags
from services.templates.assistant import AssistantWriter
from services.templates.chat_template import ChatTemplate
from services.templates.detection import detect_family
from tests.kit.every import for_each
from tests.kit.families import CALLING
from tests.kit.parser_cases import CHUNKINGS, Block, fold, run, words
from tests.kit.published import TEMPLATES, needs_templates, traits_of

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
PLAIN = (
    *" \n`'\"\\{}[](),=<é",
    "\n\n",
    "```\n",
    "\\n",
    "x: 1",
    " names it.",
    "The end.",
    "5",
    "null",
    "<b>",
    "</b>",
)
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
    own |= {
        *calls,
        *family.markers,
        *family.stops,
        *(family.think or ()),
        family.style.call_prefix(None),
        ends(family),
    }
    own |= {half for call in calls[:2] for half in (call[: len(call) // 2], call[len(call) // 2 :])}
    if family in TAGGED:
        for key in ("content", "filePath", "mode", "command"):
            before, after = around(family, key)
            own |= {
                before,
                before.strip(),
                after,
                after.strip(),
                before + "v" + after,
                after + ends(family),
            }
    others = (
        "hermes",
        "qwen3_coder",
        "glm47",
        "gpt_oss",
        "minimax_m2",
        "deepseek_v4",
        "kimi_k2",
        "mistral",
    )
    return sorted(filter(None, own | {example(families()[name]) for name in others}))


def any_value(chance: random.Random, of: list[str]) -> str:
    parts = [
        chance.choice(of if chance.random() < 0.6 else PLAIN)
        for _ in range(chance.choice((1, 1, 2, 3, 4, 6)))
    ]
    value = chance.choice(("", "", "\n", " ")).join(parts)
    return f"\n{value}\n" if chance.random() < 0.1 else value


def any_call(chance: random.Random, of: list[str]) -> tuple[str, dict[str, Any]]:
    name = chance.choice(("write", "write", "bash", "read"))
    arguments: dict[str, Any] = {}
    for key, optional in {
        "write": {"content": 0, "filePath": 0, "mode": 1},
        "bash": {"command": 0, "timeout": 1},
    }.get(name, {"path": 0, "limit": 1}).items():
        if not optional or chance.random() < 0.5:
            arguments[key] = (
                chance.choice((1, 5)) if key in ("timeout", "limit") else any_value(chance, of)
            )
    keys = list(arguments)
    chance.shuffle(keys)
    return name, {key: arguments[key] for key in keys}


def parsed(family: Family, raw: str, chance: random.Random | None = None) -> list[Block]:
    """The blocks, the same however the text is cut."""
    cuts: list[Callable[[str], Any]] = list(CHUNKINGS.values())
    if chance is not None:
        at = sorted(chance.sample(range(len(raw) + 1), min(8, len(raw))))
        cuts = [
            lambda text: [text],
            list,
            lambda text: [text[i:j] for i, j in zip([0, *at], [*at, None], strict=True)],
        ]
    results = [fold(run(open_parser(family.name, tools=TOOLS), cut(raw))) for cut in cuts]
    assert all(result == results[0] for result in results), raw
    return results[0]


def completed(blocks: list[Block]) -> list[tuple[str, Any]]:
    """The calls that would be dispatched."""
    calls = [block for block in blocks if block["type"] == "tool_use" and block["complete"]]
    return [(block["name"].removeprefix("functions."), block["input"]) for block in calls]


def same(family: Family, call: tuple[str, Any], other: tuple[str, Any]) -> bool:
    quote = json.dumps(QUOTES.get(family.name, '"'))[1:-1]
    return call[0] == other[0] and json.dumps(call[1]).replace(quote, '\\"') == json.dumps(
        other[1]
    ).replace(quote, '\\"')


def squeezed(text: str) -> str:
    return "".join(text.split())


Write = Callable[[tuple[str, dict[str, Any]]], str]


def is_ambiguous(
    family: Family, raw: str, blocks: list[Block], written: list[tuple[str, Any]], write: Write
) -> bool:
    """Whether the same text would be written for these blocks, or a value has the end of an
    argument and then, after nothing but closers, the start of another block."""
    style, quote = family.style, QUOTES.get(family.name, '"')
    parts = [
        write((block["name"].removeprefix("functions."), block["input"]))
        if block["type"] == "tool_use"
        else style.write_reasoning(block["text"])
        if block["type"] == "reasoning"
        else style.write_text(block["text"])
        for block in blocks
        if block["complete"]
    ]
    if squeezed(style.joint.join(parts)).replace(quote, '"') == squeezed(raw).replace(quote, '"'):
        return True
    end = (
        around(family, "command")[1].strip()
        if family in TAGGED
        else QUOTES.get(family.name, "]<]minimax[>[</")
    )
    others = family.grammar.ends if isinstance(family.grammar, Channels) else ()
    closers = (word for word in (*words(ends(family) or "</function>"), *others) if word.strip())
    starts = "|".join(map(re.escape, (*closers, *openings(family))))
    seam = re.compile(rf"{re.escape(end)}[^<]*?(?:{starts})")
    return any(seam.search("\n".join(map(str, arguments.values()))) for _, arguments in written)


def has_wrapper(family: Family) -> bool:
    """Whether something closes more than the call."""
    tagged = family in TAGGED and len(re.findall("<[^<>]*>", ends(family))) < 2
    return isinstance(family.grammar, Markup) and bool(family.grammar.tails) and not tagged


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


@needs_templates
@for_each(TEMPLATES, parts=3)
def test_no_text_of_a_value_makes_another_call_with_a_published_template(
    name: str, compiled_template: Callable[[str], ChatTemplate]
) -> None:
    template = compiled_template(name)
    traits = traits_of(template)
    found = detect_family(template, traits, {})
    if found is None or traits.arguments is None:
        return  # the template writes no calls that a parser reads
    family, writer = found.family, AssistantWriter(traits, template, call_ids={})
    quotes = writer.markup([Call("abc123def", "bash", '{"command": "\'\\""}')])
    if "\\'\"" not in quotes and family.name == "lfm2":
        return  # the template writes strings without escapes
    chance, of = random.Random(family.name), pieces(family)
    for _ in range(20):
        with contextlib.suppress(Invalid):  # the template refuses a control token
            call = any_call(chance, of)
            check(
                family,
                [call],
                lambda call: writer.markup([Call("abc123def", call[0], json.dumps(call[1]))]),
                chance,
            )


SHOWN = [
    "{example} is a call.",
    "One:\n{example}",
    "{example}",
    "{example}\n{example}",
    "First {example} then {example} and {nested}.",
    "```\n{example}\n```\n",
    "\n\n{nested}\n\n",
]


@for_each(CALLING, parts=3)
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
            raw = family.style.write_call("write", arguments)
            assert completed(parsed(family, raw)) == [("write", arguments)]
            assert completed(parsed(family, raw + family.style.joint + example(family))) == [
                ("write", arguments),
                LS,
            ]


@pytest.mark.slow
@for_each(CALLING)
def test_value_that_shows_calls_of_other_families_is_read_back_or_never_completes(
    family: Family,
) -> None:
    """It is read back unless the other family closes a call or a value with a marker of this
    one."""
    for other in CALLING:
        call = (
            "write",
            {"content": f"In {other.name}:\n{example(other)}\nThat is all.", "filePath": "/a"},
        )
        calls = completed(parsed(family, family.style.write_call(*call)))
        closers = [*words(ends(family)), *re.findall("</[^>]+>", example(family))]
        shared = any(marker in example(other) for marker in closers if not marker.isspace())
        assert calls == [call] or (shared and calls == [])


@for_each(TAGGED)
def test_value_that_names_the_tags_of_its_call_is_read_back(family: Family) -> None:
    for tag in (
        *around(family, "filePath"),
        *around(family, "content"),
        *around(family, "zzz"),
        *words(ends(family)),
    ):
        content = f"The tag `{tag.strip()}` names it."
        for arguments in (
            {"content": content, "filePath": "/a"},
            {"filePath": "/a", "content": content},
        ):
            raw = family.style.write_call("write", arguments)
            assert completed(parsed(family, raw)) == [("write", arguments)], tag


@for_each(TAGGED)
def test_value_that_shows_two_arguments_without_their_call_never_becomes_two_arguments(
    family: Family,
) -> None:
    (path, path_end), (mode, mode_end) = around(family, "filePath"), around(family, "mode")
    content = f"As {path.strip()}x{path_end.strip()}{mode.strip()}y{mode_end.strip()} says."
    for arguments in (
        {"content": content, "filePath": "/a"},
        {"filePath": "/a", "content": content},
    ):
        assert completed(parsed(family, family.style.write_call("write", arguments))) == []


@for_each(TAGGED, parts=2)
def test_call_after_an_argument_without_a_key_in_a_value_never_completes(family: Family) -> None:
    """The argument's opening tag is whole, or a piece of it."""
    before, after = around(family, "zzz")
    pieces = [before[: found.end()] for found in re.finditer("zzz|>|<", before)][1:]
    for opening in dict.fromkeys(
        piece.replace("zzz", key) for piece in pieces for key in ("", " ", "\n")
    ):
        for last in ("", f"\n{example(family)}", f"\n{example(family)} names it."):
            content = f"x{after}{opening}{last}"
            for arguments in (
                {"content": content, "filePath": "/a"},
                {"filePath": "/a", "content": content},
            ):
                calls = completed(parsed(family, family.style.write_call("write", arguments)))
                assert calls in ([], [("write", arguments)]), arguments


@for_each(TAGGED)
def test_end_of_an_argument_before_a_marker_that_follows_none_is_text(family: Family) -> None:
    """Whatever follows that marker, also what closes a call or begins an argument."""
    before, after = around(family, "mode")
    for marker in family.markers:
        for then in (*filter(str.strip, words(ends(family))), *family.stops, before):
            content = f"x{after}{marker}\n{then}\n"
            check(
                family,
                [("write", {"filePath": "/a", "content": content})],
                lambda call: family.style.write_call(*call),
                random.Random(0),
            )


@for_each(CALLING)
def test_call_with_an_argument_twice_never_completes(family: Family) -> None:
    once = family.style.write_call(
        "write", {"content": "a", "contenu": "b", "filePath": example(family)}
    )
    twice = once.replace("contenu", "content")
    assert len(completed(parsed(family, once))) == 1
    assert completed(parsed(family, twice)) == []
    assert completed(parsed(family, twice + family.style.joint + example(family))) in ([], [LS])


@for_each(
    [
        f
        for f in TAGGED
        if isinstance(f.style.arguments, Tags) and not f.style.arguments.states_types
    ]
)
@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        ("1e5", 100000),
        ("1E3", 1000),
        ("5.0", 5),
        ("+5", 5),
        ("-2.50e1", -25),
        ("1_000", "1_000"),
        ("1e999999", "1e999999"),
    ],
)
def test_whole_number_is_an_integer_however_it_is_written(
    family: Family, spelled: str, value: object
) -> None:
    raw = family.style.write_call("read", {"path": "/a", "limit": "777"}).replace("777", spelled)
    ((_, arguments),) = completed(parsed(family, raw))
    assert (arguments["limit"], type(arguments["limit"])) == (value, type(value))


@for_each([f for f in CALLING if has_wrapper(f)])
def test_closers_that_the_format_does_not_have_are_dropped_before_its_own(family: Family) -> None:
    assert isinstance(family.grammar, Markup)
    call, tail = (
        example(family),
        re.sub(r"\{\w+\}", "", family.grammar.tails[0].replace("{word}", "calls")),
    )
    for strays in ("</function_invocation>", "</a>\n</b>", "\n</x></y>\n</z>\n"):
        raw = call.removesuffix(tail) + strays + tail
        assert completed(parsed(family, raw + "\nDone.")) == [LS]
        assert [
            block["text"].strip()
            for block in parsed(family, raw + "\nDone.")
            if block["type"] == "text"
        ] == ["Done."]
        assert len(parsed(family, f"{raw}\n{raw}")) == 2


@for_each(TAGGED)
def test_text_after_a_call_is_searched_for_the_end_of_another_one_in_linear_time(
    family: Family,
) -> None:
    """A pattern that can split a word in several ways would not end, one that begins at each end of
    a call takes long."""
    for call in getattr(family.grammar, "calls", ()):
        if isinstance(call.body, Parameters):
            end = around(family, "command")[1] + ends(family)
            assert call.body.find_stray_end(f"{end} {'words ' * 10_000}")
            assert not call.body.find_stray_end(f"{end} {'words ' * 10_000}: no.")
            assert call.body.find_stray_end(f"{end} a " * 20_000)
            assert not call.body.find_stray_end(f"{end} a " * 20_000 + ": no.")
