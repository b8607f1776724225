import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import Call, Conversation, Media, Result, Text, Turn
from services.preprocessor.prompt.preamble import strip_preamble

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=sdk-cli;"
PROMPT = "You are Claude Code."


def conversation(*system: str, turns: list[Turn] | None = None) -> Conversation:
    return Conversation("m", turns or [Turn("user", [Text("hi")])], system=[Text(text) for text in system])


def system_after(*system: str) -> tuple[list[str], int]:
    stripped, removed = strip_preamble(conversation(*system))
    return [text.text for text in stripped.system], removed


@pytest.mark.parametrize(
    ("system", "left", "removed"),
    [
        ([HEADER, PROMPT], [PROMPT], 1),
        ([f"{HEADER}\n{PROMPT}"], [PROMPT], 1),
        ([f"{HEADER}\r\n{PROMPT}"], [PROMPT], 1),
        ([f"{HEADER}\r{PROMPT}"], [PROMPT], 1),
        ([f"{HEADER}\n\n{PROMPT}\n"], [f"\n{PROMPT}\n"], 1),
        ([f"\n  {HEADER}\n{PROMPT}"], [PROMPT], 1),
        ([f"{HEADER}\n{HEADER} cch=fa690;\n{PROMPT}"], [PROMPT], 2),
        ([f"{HEADER}\n\n{HEADER}\n{PROMPT}"], [PROMPT], 2),
        ([HEADER], [], 1),
        ([HEADER + "\n"], [], 1),
        ([HEADER, HEADER + " cc_is_subagent=true;", PROMPT], [PROMPT], 2),
        ([PROMPT, HEADER, "More."], [PROMPT, "More."], 1),
        ([PROMPT, f"{HEADER}\nMore."], [PROMPT, "More."], 1),
        ([HEADER.title() + "\n" + PROMPT], [PROMPT], 1),
        ([HEADER.upper()], [], 1),
        (["x-anthropic-billing-header:\n" + PROMPT], [PROMPT], 1),
    ],
)
def test_every_form_in_the_top_level_instructions(system: list[str], left: list[str], removed: int) -> None:
    assert system_after(*system) == (left, removed)


@pytest.mark.parametrize(
    "text",
    [
        PROMPT,
        f"Never print `{HEADER}`.",
        f"{PROMPT}\n{HEADER}\nis what the client sends.",
        "x-anthropic-billing-headers are lines",
        "",
    ],
)
def test_other_instructions_are_untouched(text: str) -> None:
    before = conversation(text)
    after, removed = strip_preamble(before)
    assert after is before
    assert removed == 0


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_inside_the_conversation(role: str) -> None:
    turns = [
        Turn("user", [Text("hi")]),
        Turn(role, [Text(HEADER)]),  # type: ignore[arg-type]
        Turn(role, [Text(HEADER), Text("# Environment")]),  # type: ignore[arg-type]
        Turn(role, [Text(f"{HEADER}\n# Date")]),  # type: ignore[arg-type]
    ]
    stripped, removed = strip_preamble(conversation(turns=turns))
    assert removed == 3
    assert stripped.turns == [
        Turn("user", [Text("hi")]),
        Turn(role, [Text("# Environment")]),  # type: ignore[arg-type]
        Turn(role, [Text("# Date")]),  # type: ignore[arg-type]
    ]


def test_what_is_said_in_the_conversation_is_untouched() -> None:
    turns = [
        Turn("user", [Text(f"{HEADER}\nwhat is this?"), Media("image")]),
        Turn("assistant", [Text(HEADER), Call("c1", "Read", f'{{"path": "{HEADER}"}}')]),
        Turn("tool", [Result("c1", [Text(f"{HEADER}\n")])]),
    ]
    stripped, removed = strip_preamble(conversation(HEADER, PROMPT, turns=turns))
    assert removed == 1
    assert stripped.turns == turns


@given(st.text(), st.sampled_from(["\n", "\r\n"]))
def test_what_follows_the_header_stays_byte_for_byte(rest: str, end: str) -> None:
    left, removed = system_after(HEADER + end + "." + rest)
    assert left == ["." + rest]
    assert removed == 1


@given(st.lists(st.text(max_size=20), max_size=4))
def test_stripping_twice_changes_nothing_more(system: list[str]) -> None:
    once, _ = strip_preamble(conversation(HEADER, *system))
    assert strip_preamble(once) == (once, 0)


def test_a_long_blank_text_takes_no_time() -> None:
    assert system_after("\n" * 200_000 + "x") == (["\n" * 200_000 + "x"], 0)
