"""Writes the model output of a stream, and the blocks that a client must receive of it. Pure.

No two streams of a run have a word number in common, so that a piece that is lost, doubled, or of
another stream shows.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.kit.messages_client import call

Kind = Literal["reasoning", "text", "call"]

TOOL_NAME = "run_shell"
_TEXT = (
    "river stone window garden silver morning number letter simple between under machine system "
    "return import naïve 日本語 façade 😀 über 漢字 Привет don't a+b x<y {z} path/to/file.py "
    '"quoted" back\\slash $HOME && 100%'
)
WORDS = _TEXT.split()
TOKENS_PER_WORD = 5.5
"""The demo model's average for `WORDS` with their numbers."""


@dataclass(frozen=True)
class Block:
    """A block of a turn. The text of a call is its arguments as JSON."""

    kind: Kind
    text: str
    name: str = ""


@dataclass(frozen=True)
class Script:
    """What the model writes, and what a client must receive."""

    output: str
    """As in the prompt, with its pace."""
    written: str
    """What the engine writes, without the directive of its pace."""
    blocks: tuple[Block, ...]

    @property
    def calls(self) -> bool:
        return any(block.kind == "call" for block in self.blocks)


def write_script(chance: Random, tag: str, seconds: float, delay_ms: int) -> Script:
    """A turn of about `seconds` at a token each `delay_ms`, of interleaved reasoning, text and
    calls."""
    words = max(12, int(seconds * 1000 / delay_ms / TOKENS_PER_WORD))
    numbers = iter(range(10**9))

    def prose(count: int, separators: str = "    \n") -> str:
        parts = []
        for number in range(max(1, count)):
            word = f"{tag}{next(numbers)}" if number % 3 == 0 else chance.choice(WORDS)
            parts += [word, chance.choice(separators)]
        return "".join(parts[:-1])

    blocks = [Block("reasoning", prose(words // 5))]
    written = blocks[0].text + "\n</think>\n\n"
    shapes = ("text call", "call text", "text call text call", "call call text", "text")
    shape = chance.choice(shapes).split()
    for kind in shape:
        share = words * 4 // 5 // len(shape)
        if kind == "text":
            blocks.append(Block("text", prose(share)))
            written += blocks[-1].text + "\n\n"
        else:
            arguments: dict[str, Any] = {"cmd": prose(share)}
            if chance.random() < 0.5:
                arguments["timeout_s"] = chance.randrange(1, 1000)
            blocks.append(Block("call", json.dumps(arguments, ensure_ascii=False), TOOL_NAME))
            written += f"{call(**arguments)}\n\n"
    written = written.removesuffix("\n\n")
    return Script(f"[[delay {delay_ms}]]{written}", written, tuple(blocks))
