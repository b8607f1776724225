"""What holds for every family, by what it writes itself."""

import re
from typing import Any

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import Family, families, open_parser
from tests.kit.parser_cases import CHUNKINGS, fold, run

TOOLS = [
    ToolSpec(
        "run",
        schema={
            "properties": {
                "cmd": {"type": "string"},
                "t": {"type": "number"},
                "b": {"type": "boolean"},
            }
        },
    ),
    ToolSpec("ping", schema={"properties": {}}),
]
CALLING = [family for family in families().values() if family.style.call]
THINKING = [f for f in families().values() if f.think and f.name != "minimax_m2_append_think"]
PLAIN = [family for family in CALLING if not family.style.joint]
RUN = ("run", {"cmd": "grep -n \"tide\" 'log' | head -5", "t": 12.5, "b": False})
PING: tuple[str, dict[str, Any]] = ("ping", {})
OTHER = ("open_airlock", {"door": "B"})
TICK = "`"


def text(value: str) -> tuple[str, str]:
    return "text", value


def thought(value: str) -> tuple[str, str]:
    return "reasoning", value


def written(family: Family, *blocks: tuple[str, Any]) -> str:
    """The blocks as the family writes them, in its own order of markers."""
    parts = []
    for kind, value in blocks:
        if kind == "reasoning":
            parts.append(family.style.write_reasoning(value))
        else:
            parts.append(
                family.style.write_text(value)
                if kind == "text"
                else family.style.write_call(kind, value)
            )
    return family.style.joint.join(parts)


def read(
    family: Family, raw: str, reason: FinishReason = FinishReason.STOP, **options: Any
) -> list[tuple[str, Any]]:
    """The blocks, the same in every chunking; a call that never completes has None for
    arguments."""
    options = {"tools": TOOLS, "in_reasoning": False, **options}
    results = [
        fold(run(open_parser(family.name, **options), cut(raw), reason))
        for cut in CHUNKINGS.values()
    ]
    assert all(result == results[0] for result in results)
    return [
        (b["name"], b.get("input")) if b["type"] == "tool_use" else (b["type"], b["text"].strip())
        for b in results[0]
    ]


def ids(family: Family) -> str:
    return family.name


def marker(family: Family) -> str:
    """What opens a call, as far as a writer would name it."""
    found = re.match(
        r"<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<tool_call>|<[^>]*>|\[TOOL_CALLS\]|functools",
        family.style.call,
    )
    return found[0] if found else ""


@pytest.mark.parametrize("family", CALLING, ids=ids)
@pytest.mark.parametrize(
    "blocks",
    [
        [RUN],
        [PING],
        [OTHER],
        [RUN, PING, RUN, RUN],
        [text("One."), RUN, text("Two."), PING, text("Three.")],
        [thought("A."), RUN, thought("B."), PING],
        [thought("A."), text("T."), RUN, thought("B."), text("U.")],
        [thought("A."), RUN, PING, thought("B."), text("U.")],
        [text("Is 3 < 4? Write `</div>` before <p class=\"x\">; 1<<3 == 8, {a} [b] 'c'.")],
    ],
)
def test_order_is_kept(family: Family, blocks: list[tuple[str, Any]]) -> None:
    if family not in THINKING:
        blocks = [block for block in blocks if block[0] != "reasoning"]
    if family.name == "muse_glimmer" and blocks == [OTHER]:
        assert read(family, written(family, OTHER)) == [(f"functions.{OTHER[0]}", OTHER[1])], (
            "its name, whole"
        )
        return
    assert read(family, written(family, *blocks)) == blocks


def own_closer(family: Family) -> str:
    """The end of one call after its arguments: a bracket, or the first closing tag."""
    front, _, back = family.style.call.partition("{arguments}")
    if "[{" in front or front.endswith("(") or back in ("}", "") or family.name == "minimax_m1":
        return back[:1]
    found = re.match(
        r"[^<]*?(<\|close\|>call<\|sep\|>|]<]minimax\[>\[</invoke>|<[^>]*>|```\Z)", back
    )
    assert found
    return found[0]


@pytest.mark.parametrize("family", CALLING, ids=ids)
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
            assert blocks in ([], [("run", None)])
        else:
            assert blocks == [("run", arguments)]


@pytest.mark.parametrize("family", CALLING, ids=ids)
def test_arguments_only_grow(family: Family) -> None:
    call = family.style.write_call("run", {"cmd": 'a \\ "b"\n é🚢', "t": 3})
    parser = open_parser(family.name, tools=TOOLS, in_reasoning=False)
    events = [event for char in call for event in parser.feed(char)] + parser.finish(
        FinishReason.STOP
    )
    (block,) = fold(events)
    assert block["input"] == {"cmd": 'a \\ "b"\n é🚢', "t": 3}
    assert len(events) > 8, "a string argument streams"


@pytest.mark.parametrize("family", [f for f in PLAIN if marker(f)], ids=ids)
def test_mentioned_marker_is_text(family: Family) -> None:
    for raw in (
        f"In this dialect {TICK}{marker(family)}{TICK} opens a call; I am only naming it.",
        f'The string {marker(family)[:-3]}zq only starts like a marker, and so does "{marker(family)[:4]}".',
        f"The answer is x {marker(family)[: len(marker(family)) // 2]}",
    ):
        assert read(family, raw) == [text(raw.rstrip())]
        assert read(family, family.style.write_text(raw))[0][1].startswith(raw[:-20])


@pytest.mark.parametrize("family", PLAIN, ids=ids)
def test_without_tools_a_call_is_text(family: Family) -> None:
    raw = f"The docs show {family.style.write_call(*RUN)} here."
    forms: list[dict[str, Any]] = [{"tools": []}, {"calls_as_text": True}]
    for options in forms:
        assert read(family, raw, **options) == [text(raw)]


@pytest.mark.parametrize("family", PLAIN, ids=ids)
def test_a_stop_token_that_comes_as_text_is_dropped(family: Family) -> None:
    for stop in family.stops:
        assert read(family, written(family, RUN) + stop) == [RUN]
        assert read(family, "Hello." + stop) == [text("Hello.")]


@pytest.mark.parametrize("family", [f for f in THINKING if not f.style.joint], ids=ids)
def test_reasoning_is_read_with_and_without_its_opener(family: Family) -> None:
    assert family.think
    opener, closer = family.think
    rest = written(family, thought("Think."), text("Answer.")).partition(opener)[2]
    answer = [thought("Think."), text("Answer.")]
    assert read(family, opener + rest) == answer
    assert read(family, rest, in_reasoning=True) == answer
    assert read(family, opener + rest, in_reasoning=True) == answer
    assert read(family, closer + "\n\nAnswer.", in_reasoning=True) == answer[1:]
    assert read(family, opener + "\nNever closed") == [thought("Never closed")]
    assert read(family, "So it go", FinishReason.LENGTH, in_reasoning=True) == [thought("So it go")]


@pytest.mark.parametrize("family", [f for f in THINKING if f in PLAIN], ids=ids)
def test_a_call_ends_open_reasoning(family: Family) -> None:
    assert family.think
    opener, closer = family.think
    call = family.style.write_call(*RUN)
    assert read(family, f"{opener}\nPlan.\n{call}") == [thought("Plan."), RUN]
    assert read(family, f"{opener}\nPlan.\n{call}\n{closer}\n\nDone.") == [
        thought("Plan."),
        RUN,
        text("Done."),
    ]


@pytest.mark.parametrize(
    "family", [f for f in THINKING if not f.style.joint and f.style.text == "{text}"], ids=ids
)
def test_reasoning_opens_at_a_boundary_only(family: Family) -> None:
    assert family.think
    opener, closer = family.think
    quoted = f"Answer.\n```\n{opener}\nplan\n{closer}\nok\n```"
    assert read(family, family.style.write_reasoning("Think.") + quoted) == [
        thought("Think."),
        text(quoted),
    ]
