"""What holds for every family's calls, by what it writes itself: whole, cut, broken and empty
ones."""

import re

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import Family, open_parser
from tests.kit.every import for_each
from tests.kit.families import (
    CALLING,
    PING,
    PLAIN,
    RUN,
    TAGGED,
    TOOLS,
    closers,
    orphans,
    read,
    text,
    written,
)
from tests.kit.parser_cases import fold

TAGGED_CALLS = [family for family in CALLING if family in TAGGED]


def marker(family: Family) -> str:
    """What opens a call, as far as a writer would name it."""
    found = re.match(
        r"<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<tool_call>|<[^>]*>|\[TOOL_CALLS\]|functools",
        family.style.call,
    )
    return found[0] if found else ""


def own_closer(family: Family) -> str:
    """The end of one call after its arguments: a bracket, or the first closing tag. A bracket of
    Python may be text of a string until the list ends."""
    front, _, back = family.style.call.partition("{arguments}")
    if front.endswith("("):
        return back[: back.find("]") + 1] or back
    if "[{" in front or back in ("}", "") or family.name == "minimax_m1":
        return back[:1]
    found = re.match(
        r"[^<]*?(<\|close\|>call<\|sep\|>|]<]minimax\[>\[</invoke>|<[^>]*>|```\Z)", back
    )
    assert found
    return found[0]


@for_each(CALLING, parts=2)
def test_a_call_cut_anywhere_leaves_no_piece_in_the_text_and_never_completes(
    family: Family,
) -> None:
    arguments = {"cmd": "Buoys 4, 9 drifted", "t": 3}
    call = family.style.write_call("run", arguments)
    back = family.style.call.partition("{arguments}")[2]
    closed = len(call) - len(back) + len(own_closer(family))
    for end in range(1, len(call)):
        blocks = read(family, call[:end], FinishReason.LENGTH)
        if end < closed:
            assert blocks in ([], [("run", None)]), call[:end]
        else:
            assert blocks == [("run", arguments)], call[:end]


@for_each(CALLING)
def test_arguments_only_grow(family: Family) -> None:
    call = family.style.write_call("run", {"cmd": 'a \\ "b"\n é🚢', "t": 3})
    parser = open_parser(family.name, tools=TOOLS, in_reasoning=False)
    events = [event for char in call for event in parser.feed(char)] + parser.finish(
        FinishReason.STOP
    )
    (block,) = fold(events)
    assert block["input"] == {"cmd": 'a \\ "b"\n é🚢', "t": 3}
    assert len(events) > 8, "a string argument streams"


@for_each([family for family in PLAIN if marker(family)])
def test_mentioned_marker_is_text(family: Family) -> None:
    opener = marker(family)
    for raw in (
        f"In this dialect `{opener}` opens a call; I am only naming it.",
        f'The string {opener[:-3]}zq only starts like a marker, and so does "{opener[:4]}".',
        f"The answer is x {opener[: len(opener) // 2]}",
    ):
        assert read(family, raw) == [text(raw.rstrip())]
        assert read(family, family.style.write_text(raw))[0][1].startswith(raw[:-20]), raw


@for_each(PLAIN)
def test_without_tools_a_call_is_text_and_a_stop_token_at_the_end_is_dropped(
    family: Family,
) -> None:
    raw = f"The docs show {family.style.write_call(*RUN)} here."
    assert read(family, raw, tools=[]) == [text(raw)]
    assert read(family, raw, calls_as_text=True) == [text(raw)]
    for stop in family.stops:
        assert read(family, written(family, RUN) + stop) == [RUN], stop
        assert read(family, "Hello." + stop) == [text("Hello.")], stop


@for_each(CALLING)
def test_doubled_name_is_mapped_and_other_namespaces_stay(family: Family) -> None:
    """Only a namespace that the format adds, or a doubled name, leads to the registered tool."""
    arguments = {"cmd": "ls"}
    doubled = read(family, family.style.write_call("run.run", arguments))
    other = read(family, family.style.write_call("other.tool", arguments))
    assert doubled == [("run", arguments)]
    assert other == [
        ("functions.other.tool" if family.name == "muse_glimmer" else "other.tool", arguments)
    ]


@for_each(TAGGED_CALLS)
def test_closer_without_opener_is_dropped_at_the_end_and_text_inside(family: Family) -> None:
    for orphan in orphans(family):
        assert read(family, f"Done.{orphan}") == [text("Done.")], orphan
        assert read(family, f"Done.\n{orphan}\n") == [text("Done.")], orphan
        assert read(family, f"Done, {orphan} I say.") == [text(f"Done, {orphan} I say.")]


@for_each(TAGGED_CALLS)
def test_closer_on_its_own_line_is_not_text(family: Family) -> None:
    """After a call any closing tag, in prose those of the format; not in code."""
    call, tails = family.style.write_call(*RUN), closers(family)
    for closer in [*tails, *(("</function_invocation>", "</x>\n</y>") if tails else ())]:
        assert read(family, f"{call}\n{closer}\nDone.") == [RUN, text("Done.")], closer
        found = read(family, f"{call}\n{closer}\n{call}\n{closer}\n")
        assert [name for name, _ in found] == ["run", "run"], closer
    for closer in tails:
        found = read(family, f"One.\n{closer}\nTwo.\n{closer}\n{call}")
        assert found == [text("One."), text("Two."), RUN], closer
        shown = f"So:\n```\n{closer}\n```\nDone."
        assert read(family, shown) == [text(shown)]


def empty_bodies(family: Family) -> list[str]:
    """Ways to write no arguments, where the format has a place for them; JSON needs a value after
    its colon."""
    front = family.style.call.partition("{arguments}")[0]
    as_json = family.style.arguments({}) == "{}"
    bodies = [] if front.rstrip().endswith(":") else ["", " ", "\n", "\n\n"]
    if as_json:
        bodies += ["{}", "{ }"]
    if as_json and family.name not in ("gemma4", "functiongemma"):
        bodies.append("null")
    return bodies


@for_each(CALLING)
def test_call_without_arguments_completes(family: Family) -> None:
    """Also that of a tool that requires some: the client knows what its tool does then."""
    required = {"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
    tools = [ToolSpec("ping"), ToolSpec("run", schema=required)]
    for name in ("ping", "run"):
        front, _, back = family.style.call.replace("{name}", name).partition("{arguments}")
        for body in empty_bodies(family):
            raw = front + body + back
            assert read(family, raw, tools=tools) == [(name, {})], raw
            again = raw + (family.style.joint or "\n") + family.style.write_call(*PING)
            assert read(family, again, tools=tools) == [(name, {}), PING], again
