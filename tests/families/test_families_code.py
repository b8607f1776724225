"""A call in code, in backticks or in a fence, is text; a call that only follows code is run."""

from itertools import product

from schemas.events import FinishReason
from services.families import Family
from services.families.grammar.code import Code
from tests.kit.every import for_each, for_rows
from tests.kit.families import CALLING, PING, PLAIN, RUN, Said, read, text

BARE = ("llama3_json", "pythonic", "xlam")
"""Their calls have no marker, so a fence may be part of a call."""
MARKED = [family for family in CALLING if family.name not in BARE]
QUOTABLE = [family for family in PLAIN if family.name not in BARE]
CALLS = (RUN, PING)
FENCES = ("```", "````", "~~~", "  ```")
FRONTS = (
    "Run `ls`.",
    "Run `ls`",
    "Run `ls` and `pwd`:\n",
    "A stray ` here. ",
    "So:\n```sh\nls\n```\n",
    "So:\n```\nls\n```",
    "```python\nprint('~~~')\n```\nThen:\n",
    "````\n```\n````\n",
    "``a ` b``\n",
)


def run_calls(blocks: list[Said]) -> list[Said]:
    """The calls that would be dispatched."""
    return [
        block for block in blocks if block[0] not in ("text", "reasoning") and block[1] is not None
    ]


@for_each(CALLING)
def test_call_in_backticks_does_not_run(family: Family) -> None:
    for call, ticks in product(CALLS, ("`", "``", "```")):
        written = f"{ticks}{family.style.write_call(*call).strip()}{ticks}"
        assert run_calls(read(family, written)) == [], written
        raw = f"You would write {written} to clean."
        for reason in FinishReason.STOP, FinishReason.LENGTH:
            found = read(family, raw, reason)
            assert run_calls(found) == [], raw
            assert found == [text(raw)] or family not in PLAIN, (raw, found)


@for_each(QUOTABLE)
def test_fence_in_an_argument_does_not_end_the_fence_around_the_call(family: Family) -> None:
    shown = family.style.write_call("write", {"content": "So:\n```py\nx\n```\n"}).strip()
    raw = f"Write it:\n```xml\n{shown}\n```\nNow run it.\n{family.style.write_call(*RUN)}\nDone."
    found = read(family, raw)
    assert run_calls(found) == [RUN]


@for_each(MARKED)
def test_call_in_a_fence_does_not_run(family: Family) -> None:
    calls = CALLS if family in PLAIN or family.name == "gpt_oss" else CALLS[:1]
    joint = family.style.joint or "\n"
    written = joint.join(family.style.write_call(*call) for call in calls)
    for fence, info in product(FENCES, ("", " json title=a")):
        raw = f"For example:\n{fence}{info}\n{written}\n{fence}\nThat is all."
        found = read(family, raw)
        assert run_calls(found) == [], raw
        assert found == [text(raw)] or family not in PLAIN, (raw, found)


@for_each(CALLING)
def test_call_after_code_runs(family: Family) -> None:
    for front in FRONTS:
        if family.name == "pythonic" and not front.endswith("\n"):
            continue
        for call in CALLS:
            raw = f"{front}{family.style.joint}{family.style.write_call(*call)}"
            if family.style.joint:
                raw = family.style.write_text(front) + raw.removeprefix(front)
            assert read(family, raw) == [text(front.strip()), call], front


@for_each(QUOTABLE)
def test_call_in_a_fence_that_is_never_closed_runs(family: Family) -> None:
    front = "So:\n```sh\n"
    raw = front + family.style.write_call(*RUN)
    assert read(family, raw) == [text(front.strip()), RUN]
    again = raw + "\n" + family.style.write_call(*PING)
    assert read(family, again) == [text(front.strip()), RUN, PING]
    assert run_calls(read(family, again[:-9], FinishReason.LENGTH)) in ([], [RUN], [RUN, PING])


@for_rows(
    [
        ("", False),
        ("```\n", True),
        ("```py\nx\n```\n", False),
        ("````\n```\n", True),
        ("~~~\n```\n~~~", False),
        ("```a`b\n", False),
        ("x ```\n", False),
        ("```\r\nx\r\n```\r\n", False),
    ]
)
def test_fence_opens_and_closes_as_in_markdown(lines: str, fenced: bool) -> None:
    for size in (1, 2, 3, 100):
        code = Code()
        for at in range(0, len(lines), size):
            code.add(lines[at : at + size])
        assert code.fenced is fenced, size
