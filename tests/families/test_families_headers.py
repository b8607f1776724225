"""Headers of any form: the parts that are there decide the kind of a message, and its body comes
back once and whole."""

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.events import FinishReason
from services.families import Family, families
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.families import Said, joined, read

HARMONY = [families()[name] for name in ("gpt_oss", "beam")]
NAMES = ("start", "channel", "constrain", "message", "end", "call", "return")
CONTROL = [f"<|{name}|>" for name in NAMES]
WORDS = (
    "analysis",
    "––analysis",
    "assistantanalysis",
    "final",
    "commentary",
    "––commentary",
    "comment",
    "answer",
    "",
    "x-9",
)
BLANKS = ("", " ", "  ", "\n", "\t ")
SOLID = st.text("ab .,:;!?'\"()[]<>|`*_-=/\\é🚢\n", min_size=1, max_size=30).map(
    lambda text: f"A{text.strip()}"
)


def call(arguments: str) -> Said:
    return "run", {"cmd": arguments}


def kind_of(word: str) -> str:
    return "reasoning" if "analysis" in word else "text"


@st.composite
def messages(
    draw: st.DrawFn, family: Family, first: bool, open_before: bool
) -> tuple[str, Said, bool]:
    """A message as text, its meaning, and whether it lacks an end. `open_before`: so did the
    message before it."""

    def blank() -> str:
        return draw(st.sampled_from(BLANKS))

    channel = draw(st.sampled_from(["<|channel|>", "<|channel|>" + blank(), blank()]))
    word = draw(
        st.sampled_from([*WORDS, "–– commentary", "final answer"] if channel.strip() else WORDS)
    )
    recipient = draw(st.sampled_from(["", " to=functions.run", " to=run", "to=functions.run "]))
    constrain = draw(
        st.sampled_from(["", " <|constrain|>json", "<|constrain|>", " json", "<|constrain|> json "])
    )
    starts = ["<|start|>assistant", "<|start|>", "<|start|>asst", "<|start|> assistant "]
    if first or not open_before:
        starts.append("")
    start = draw(st.sampled_from(starts))
    if not start and not channel.strip() and first and " " in word + recipient.strip():
        start = "<|start|>assistant"
    parts = [channel + word + (blank() or " " * recipient.startswith("to")), recipient]
    if draw(st.booleans()) and channel.strip():
        parts.reverse()
    space = " " if start.endswith(("t", "e")) and not parts[0].startswith(("<", " ")) else ""
    header = start + space + "".join(parts)
    if (
        recipient
        and not recipient.endswith(" ")
        and header.endswith("run")
        and constrain[:1] not in ("", " ", "<")
    ):
        header += " "
    header += constrain if recipient else ""
    ending = draw(st.sampled_from(["<|end|>", "<|call|>", "<|return|>", ""]))
    if recipient:
        text = draw(st.sampled_from(["ls", "a b", "é"]))
        body = (
            family.style.write_call("run", {"cmd": text})
            .partition("<|message|>")[2]
            .partition("<|call|>")[0]
        )
        return header + "<|message|>" + body + ending, call(text), not ending
    text = draw(SOLID)
    return header + "<|message|>" + text + ending, (kind_of(word), text), not ending


@st.composite
def turns(draw: st.DrawFn, family: Family) -> tuple[str, list[Said]]:
    """A turn of messages, and its blocks; neighbours of one kind are joined."""
    raw, blocks, open_before = "", list[Said](), False
    for number in range(draw(st.integers(1, 4))):
        text, block, open_before = draw(messages(family, not number, open_before))
        raw += text
        blocks.append(block)
    return raw, blocks


@for_each(HARMONY)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_header_is_read_by_the_parts_that_are_there(
    family: Family, data: st.DataObject
) -> None:
    raw, blocks = data.draw(turns(family))
    found = read(family, raw)
    assert joined(found) == joined(blocks), raw


@for_each(HARMONY)
def test_arguments_directly_after_a_recipient_are_no_part_of_its_name(family: Family) -> None:
    for between in ("", " ", "\n"):
        raw = "<|channel|>commentary to=functions.run" + between + '{"cmd": "ls"}<|call|>'
        assert read(family, raw) == [call("ls")], raw


@for_each(HARMONY)
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_turn_that_ends_in_a_header_shows_no_control_token(
    family: Family, data: st.DataObject
) -> None:
    raw, blocks = data.draw(turns(family))
    anywhere = data.draw(st.integers(0, len(raw)))
    behind_token = data.draw(
        st.sampled_from([found.end() for found in re.finditer(r"<\|\w+\|>", raw)])
    )
    for end, reason in ((anywhere, FinishReason.LENGTH), (behind_token, FinishReason.STOP)):
        found = read(family, raw[:end], reason)
        prose = [value for kind, value in found if kind in ("text", "reasoning")]
        assert not [token for token in CONTROL for value in prose if token in value], (
            raw[:end],
            found,
        )
        assert len(joined(found)) <= len(joined(blocks)) + 1  # a word of a cut header may be text
