"""Headers of any form: the parts that are there decide the kind of a message, and its body comes
back once and whole."""

import random
import re

from schemas.events import FinishReason
from services.families import Family, families
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.kit.families import Said, joined, read

HARMONY = [families()[name] for name in ("gpt_oss", "beam")]
NAMES = ("start", "channel", "constrain", "message", "end", "call", "return")
CONTROL = [f"<|{name}|>" for name in NAMES]
WORDS = ["analysis", "––analysis", "assistantanalysis", "final", "commentary", "––commentary"]
WORDS += ["comment", "answer", "", "x-9"]
BLANKS = ("", " ", "  ", "\n", "\t ")
LETTERS = "ab .,:;!?'\"()[]<>|`*_-=/\\é🚢\n"


def call(arguments: str) -> Said:
    return "run", {"cmd": arguments}


def kind_of(word: str) -> str:
    return "reasoning" if "analysis" in word else "text"


def message(
    family: Family, chance: random.Random, *, first: bool, open_before: bool
) -> tuple[str, Said, bool]:
    """A message as text, its meaning, and whether it lacks an end. `open_before`: so did the
    message before it."""
    of, blank = chance.choice, chance.choice(BLANKS)
    channel = of(["<|channel|>", "<|channel|>" + of(BLANKS), of(BLANKS)])
    word = of([*WORDS, "–– commentary", "final answer"] if channel.strip() else WORDS)
    recipient = of(["", " to=functions.run", " to=run", "to=functions.run "])
    constrain = of(["", " <|constrain|>json", "<|constrain|>", " json", "<|constrain|> json "])
    starts = ["<|start|>assistant", "<|start|>", "<|start|>asst", "<|start|> assistant "]
    if first or not open_before:
        starts.append("")
    start = of(starts)
    if not start and not channel.strip() and first and " " in word + recipient.strip():
        start = "<|start|>assistant"
    parts = [channel + word + (blank or " " * recipient.startswith("to")), recipient]
    if chance.random() < 0.5 and channel.strip():
        parts.reverse()
    space = " " if start.endswith(("t", "e")) and not parts[0].startswith(("<", " ")) else ""
    header = start + space + "".join(parts)
    if recipient and header.endswith("run") and constrain[:1] not in ("", " ", "<"):
        header += " "
    ending = of(["<|end|>", "<|call|>", "<|return|>", ""])
    if recipient:
        command = of(["ls", "a b", "é"])
        written = family.style.write_call("run", {"cmd": command})
        body = written.partition("<|message|>")[2].partition("<|call|>")[0]
        return f"{header}{constrain}<|message|>{body}{ending}", call(command), not ending
    body = "A" + "".join(chance.choices(LETTERS, k=chance.randint(1, 30))).strip()
    return f"{header}<|message|>{body}{ending}", (kind_of(word), body), not ending


def any_turn(family: Family, chance: random.Random) -> tuple[str, list[Said]]:
    """A turn of messages, and its blocks; neighbours of one kind are joined."""
    raw, blocks, open_before = "", list[Said](), False
    for number in range(chance.randint(1, 4)):
        text, block, open_before = message(
            family, chance, first=not number, open_before=open_before
        )
        raw += text
        blocks.append(block)
    return raw, blocks


@for_each(HARMONY)
def test_any_header_is_read_by_the_parts_that_are_there(family: Family) -> None:
    for chance in chances(family.name, 120):
        raw, blocks = any_turn(family, chance)
        assert joined(read(family, raw)) == joined(blocks), raw


@for_each(HARMONY)
def test_arguments_directly_after_a_recipient_are_no_part_of_its_name(family: Family) -> None:
    for between in ("", " ", "\n"):
        raw = "<|channel|>commentary to=functions.run" + between + '{"cmd": "ls"}<|call|>'
        assert read(family, raw) == [call("ls")], raw


@for_each(HARMONY)
def test_turn_that_ends_in_a_header_shows_no_control_token(family: Family) -> None:
    for chance in chances(f"{family.name} cut", 60):
        raw, blocks = any_turn(family, chance)
        anywhere = chance.randint(0, len(raw))
        after_token = chance.choice([found.end() for found in re.finditer(r"<\|\w+\|>", raw)])
        for end, reason in ((anywhere, FinishReason.LENGTH), (after_token, FinishReason.STOP)):
            found = read(family, raw[:end], reason)
            prose = [value for kind, value in found if kind in ("text", "reasoning")]
            shown = [token for token in CONTROL for value in prose if token in value]
            assert not shown, (raw[:end], found)
            # a word of a cut header may be text
            assert len(joined(found)) <= len(joined(blocks)) + 1
