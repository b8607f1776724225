"""Calls whose body is bare text (CWM): any text is read whole, in every chunking, and never in
part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import open_parser
from tests.kit.parser_cases import CHUNKINGS, fold, run

TOOLS = [ToolSpec("bash", schema={"properties": {"command": {"type": "string"}}}), ToolSpec("ping")]
PIECES = st.lists(
    st.sampled_from(
        ["ls", "\n", " ", "</tool>", "<tool: ", "<tool: bash>\n", "{", '"', "\\", "é", "</think>"]
    ),
    max_size=8,
)
TEXTS = PIECES.map("".join)


def read(raw: str, reason: FinishReason = FinishReason.STOP) -> list[tuple[str, object]]:
    """The blocks, the same in every chunking; a call that never completes has None for
    arguments."""
    results = [
        fold(run(open_parser("cwm", tools=TOOLS, in_reasoning=False), cut(raw), reason))
        for cut in CHUNKINGS.values()
    ]
    assert all(result == results[0] for result in results)
    return [
        (one["name"], one.get("input")) if one["type"] == "tool_use" else (one["type"], one["text"])
        for one in results[0]
    ]


def is_plain(text: str) -> bool:
    """The text does not itself end a call, and is not one in JSON."""
    bare = text.strip()
    return (
        bool(bare)
        and bare != "null"
        and bare[0] != "{"
        and not bare.startswith("</tool>")
        and not any(
            not rest.strip() or rest.lstrip().startswith("<tool: ")
            for rest in f"\n{text}".split("\n</tool>")[1:]
        )
    )


@given(TEXTS.filter(is_plain))
def test_any_text_is_the_argument(text: str) -> None:
    assert read(f"<tool: bash>\n{text}\n</tool>") == [("bash", {"command": text})]


@given(TEXTS.filter(is_plain), st.integers(0, 80))
def test_cut_text_is_never_a_complete_call(text: str, at: int) -> None:
    raw = f"<tool: bash>\n{text}\n</tool>"
    blocks = read(raw[: len("<tool: bash>\n") + at % len(raw)], FinishReason.LENGTH)
    assert all(arguments is None for kind, arguments in blocks if kind == "bash")


def test_text_that_ends_a_call_starts_the_next_one() -> None:
    raw = "<tool: bash>\nls\n</tool>\n<tool: bash>\ndate\n</tool>\n"
    assert read(raw) == [("bash", {"command": "ls"}), ("bash", {"command": "date"})]


@pytest.mark.parametrize("body", ["", "\n", "null", "{}"])
def test_empty_body_is_a_call_without_arguments(body: str) -> None:
    assert read(f"<tool: ping>\n{body}\n</tool>") == [("ping", {})]
