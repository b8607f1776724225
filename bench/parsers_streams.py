"""Makes the input of the parsers: prose, reasoning and a long string argument in each family's
notation, as tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from services.families import families

TOP: Final = (
    *(
        "qwen3_coder",
        "deepseek_v4",
        "glm47",
        "kimi_k2",
        "gpt_oss",
        "minimax_m2",
        "kimi_k3",
        "minimax_m3",
    ),
    *(
        "deepseek_v41",
        "nemotron_v3",
        "hermes",
        "gemma4",
        "mistral",
        "deepseek_v32",
        "muse_glimmer",
        "glm45",
    ),
    *("deepseek_v31", "inkling", "step3p5", "mimo"),
)
"""The twenty families that agents use most."""
TOOL: Final[dict[str, Any]] = {
    "name": "write_file",
    "description": "Writes a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
}
_WORD: Final = re.compile(r" ?[^\W\d_]+|\d{1,3}|[ \t]+|\n+|.", re.DOTALL)
_PROSE: Final = (
    "The parser keeps two buffers, and only the second one is bounded. I checked the "
    "callers: three of\n"
    "them pass an empty list (which is fine), but `render_page` hands over None when the "
    "session has expired. That means the\n"
    "early return on line 212 is never taken. Next, compare a < b against the limit; if it "
    "holds, the loop ends after one\n"
    "pass. I'd rather change the caller than the callee here, because the tests cover it.\n"
    "\n"
    "- First: reproduce the failure with a small input.\n"
    "- Then: add the missing branch, run the suite, and look at the diff.\n"
    "\n"
)
_CODE: Final = '''def window(rows: list[Row], start: int, limit: int = 50) -> Page:
    """The rows from `start` on, at most `limit` of them."""
    if start < 0 or limit <= 0:
        raise ValueError(f"bad window: {start}, {limit}")
    found = [row for row in rows if row.id >= start and not row.hidden]
    return Page(items=found[:limit], more=len(found) > limit, path="C:\\\\data\\\\rows")


class Page(NamedTuple):
    items: list[Row]   # never longer than the limit
    more: bool
    path: str = 'rows.html'  # <table><tr><td>…</td></tr></table>


'''
_SPOKEN: Final = {
    "gpt_oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
    ),
    "muse_glimmer": (" to=self<|message|>", "<|eom|><|start|>assistant", " to=user<|message|>"),
    "inkling": ("<|content_thinking|>", "<|end_message|><|message_model|>", "<|content_text|>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>", ""),
}
"""Families with headers: before reasoning, between reasoning and text, before text."""
_BEFORE_CALL: Final = {"kimi_k3": "<|close|>response<|sep|>"}


@dataclass(frozen=True)
class Load:
    """A stream as tokens, with its content."""

    tokens: tuple[str, ...]
    reasoning: str
    text: str = ""
    content: str = ""


def words(text: str, markers: tuple[str, ...] = ()) -> list[str]:
    """Splits a text into tokens: the family's special ones whole, the rest about as large as a
    model's."""
    if not markers:
        return _WORD.findall(text)
    pieces = re.split(f"({'|'.join(map(re.escape, sorted(markers, key=len, reverse=True)))})", text)
    return [
        token
        for i, piece in enumerate(pieces)
        for token in ([piece] if i % 2 else _WORD.findall(piece))
    ]


class Tokenizer:
    """The part of a tokenizer that parsers need: markers are single tokens, everything else is
    words.

    Only stop tokens are special: a parser that needs the others as text gets them as text.
    """

    def __init__(
        self, tokens: Sequence[str], markers: tuple[str, ...], stops: tuple[str, ...]
    ) -> None:
        self._markers = markers
        self.ids = {
            text: number for number, text in enumerate(dict.fromkeys([*markers, *stops, *tokens]))
        }
        self.texts = list(self.ids)
        self.all_special_tokens = list(stops)
        self.all_special_ids = [self.ids[stop] for stop in stops]

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    @property
    def vocab(self) -> dict[str, int]:
        return self.ids

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        return self.texts[ids] if isinstance(ids, int) else "".join(self.texts[i] for i in ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._id(token) for token in words(text, self._markers)]

    def _id(self, token: str) -> int:
        if token not in self.ids:
            self.ids[token] = len(self.texts)
            self.texts.append(token)
        return self.ids[token]

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        return (
            self.ids.get(tokens)
            if isinstance(tokens, str)
            else [self.ids.get(token) for token in tokens]
        )


def prose(count: int) -> str:
    """Returns `count` tokens of English."""
    return "".join(islice(cycle(words(_PROSE)), count)).rstrip()


def code(count: int) -> str:
    """Returns `count` tokens of a program."""
    return "".join(islice(cycle(words(_CODE)), count)).rstrip()


def reasoning(family: str, count: int) -> Load:
    """A turn that is nearly all reasoning."""
    text = prose(count)
    return _load(family, text, "Done.", "")


def text(family: str, count: int) -> Load:
    """A turn that is nearly all text."""
    return _load(family, "Fine.", prose(count), "")


def arguments(family: str, count: int) -> Load:
    """A turn that is nearly all one string argument."""
    return _load(family, "Fine.", "", code(count))


def _load(family: str, thought: str, said: str, content: str) -> Load:
    known = families()[family]
    before, between, opens = _SPOKEN.get(family, ("", "", ""))
    raw = before + thought + between if before else known.style.write_reasoning(thought)
    raw += opens + said if said else ""
    if content:
        raw += _BEFORE_CALL.get(family, "")
        raw += known.style.write_call(
            str(TOOL["name"]), {"path": "src/rows.py", "content": content}
        )
    return Load(tuple(words(raw, known.markers)), thought, said, content)
