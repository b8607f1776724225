import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.conversation import Call, Conversation, Media, Message, Result, Text
from services.preprocessor.strip import strip_preamble

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=sdk-cli;"
PROMPT = "You are Claude Code."


def conversation(*system: str, messages: list[Message] | None = None) -> Conversation:
    return Conversation("m", messages or [Message("user", [Text("hi")])], system=[Text(text) for text in system])


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
        ([HEADER + PROMPT], [PROMPT], 1),
        ([f"{HEADER} {PROMPT}"], [f" {PROMPT}"], 1),
        ([f"{HEADER} cch=fa690; {PROMPT} cch=1;\nMore."], [f" {PROMPT} cch=1;\nMore."], 1),
        ([f"{HEADER[:-1]}\n{PROMPT}"], [PROMPT], 1),
        ([HEADER.replace("; ", ";\n\t") + f"\n{PROMPT}"], [PROMPT], 1),
        ([HEADER.replace(": ", ":\r\n ") + PROMPT], [PROMPT], 1),
        ([f"{HEADER} \t\n{PROMPT}"], [PROMPT], 1),
        ([f"{HEADER} {HEADER} {PROMPT}"], [f" {PROMPT}"], 2),
    ],
)
def test_every_form_is_removed_from_top_level_instructions(system: list[str], left: list[str], removed: int) -> None:
    assert system_after(*system) == (left, removed)


@pytest.mark.parametrize(
    "text",
    [
        PROMPT,
        f"Never print `{HEADER}`.",
        f"{PROMPT}\n{HEADER}\nis what the client sends.",
        "x-anthropic-billing-headers are lines",
        "x-anthropic-billing-header: never print this line",
        "x-anthropic-billing-header: accounts=2; of the user",
        "",
    ],
)
def test_other_instructions_are_untouched(text: str) -> None:
    before = conversation(text)
    after, removed = strip_preamble(before)
    assert after is before
    assert removed == 0


@pytest.mark.parametrize("role", ["system", "developer"])
def test_headers_inside_the_conversation_are_removed(role: str) -> None:
    messages = [
        Message("user", [Text("hi")]),
        Message(role, [Text(HEADER)]),  # type: ignore[arg-type]
        Message(role, [Text(HEADER), Text("# Environment")]),  # type: ignore[arg-type]
        Message(role, [Text(f"{HEADER}\n# Date")]),  # type: ignore[arg-type]
    ]
    stripped, removed = strip_preamble(conversation(messages=messages))
    assert removed == 3
    assert stripped.messages == [
        Message("user", [Text("hi")]),
        Message(role, [Text("# Environment")]),  # type: ignore[arg-type]
        Message(role, [Text("# Date")]),  # type: ignore[arg-type]
    ]


def test_texts_of_users_models_and_tools_are_untouched() -> None:
    messages = [
        Message("user", [Text(f"{HEADER}\nwhat is this?"), Media("image")]),
        Message("assistant", [Text(HEADER), Call("c1", "Read", f'{{"path": "{HEADER}"}}')]),
        Message("tool", [Result("c1", [Text(f"{HEADER}\n")])]),
    ]
    stripped, removed = strip_preamble(conversation(HEADER, PROMPT, messages=messages))
    assert removed == 1
    assert stripped.messages == messages


FIELDS = st.lists(
    st.builds(
        "{}={};".format,
        st.sampled_from(["cc_version", "cc_entrypoint", "cch", "cc_is_subagent", "cc_workload"]),
        st.text("0123456789abcdef.-", max_size=12),
    ),
    min_size=1,
    max_size=4,
)
SPACES = st.text(" \t\r\n", max_size=3)


@st.composite
def headers(draw: st.DrawFn) -> tuple[str, int]:
    """Several headers, each joined or wrapped in some way, up to the last semicolon; and their number."""
    texts = []
    for fields in draw(st.lists(FIELDS, min_size=1, max_size=3)):
        texts += [draw(SPACES), "x-anthropic-billing-header:"]
        texts += [part for field in fields for part in (draw(SPACES), field)]
    return "".join(texts), sum("header" in text for text in texts)


@given(headers(), SPACES, st.text(min_size=1))
def test_text_after_the_fields_stays(header: tuple[str, int], spaces: str, rest: str) -> None:
    """The text follows directly, after blanks, or on its own line: only white space up to the line end is removed."""
    assume(not rest.lstrip().lower().startswith(("cc", "x-anthropic-billing-header:")) and rest.strip())
    text, count = header
    left, removed = system_after(text + spaces + rest)
    assert removed == count
    assert len(left) == 1
    assert (spaces + rest).endswith(left[0])
    lost = (spaces + rest).removesuffix(left[0])
    assert lost.strip(" \t") in ("", "\n", "\r", "\r\n")


@given(st.text("cx:;= \n-_ahbeilngdrt", max_size=80), st.booleans())
def test_only_names_fields_and_blanks_are_removed(text: str, header: bool) -> None:
    text = (HEADER if header else "") + text
    left, _ = system_after(text)
    rest = left[0] if left else ""
    assert text.endswith(rest)
    lost = text.removesuffix(rest)
    for name in ("x-anthropic-billing-header:", *HEADER.split()):
        lost = lost.replace(name, " ")
    assert all(part.startswith("cc") and "=" in part for part in lost.replace(";", " ").split())


@given(st.lists(st.text(max_size=20), max_size=4))
def test_stripping_is_idempotent(system: list[str]) -> None:
    once, _ = strip_preamble(conversation(HEADER, *system))
    assert strip_preamble(once) == (once, 0)


def test_long_blank_text_is_stripped_fast() -> None:
    assert system_after("\n" * 200_000 + "x") == (["\n" * 200_000 + "x"], 0)
