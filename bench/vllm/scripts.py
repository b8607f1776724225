"""Chooses what a model with random weights writes, by its prompt. Pure, except for files that are
read once.

A user's message contains the texts of the turns that follow it (`[[say]]…[[/say]]`, once for each
turn), or names a script (`[[script NAME]]`). Without either, the scripted agent of the demo
decides. `[[free]]`: nothing is forced.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer

from schemas.conversation import OutputFormat
from services.families import family
from turnwire_tools.script.agent import act
from turnwire_tools.script.agent_prompt import read_prompt

SCRIPTS = "TURNWIRE_BENCH_SCRIPTS"
"""Environment variable: a JSON file with the texts of each script's turns."""
MARKS = "TURNWIRE_BENCH_MARKS"
"""Environment variable: the file for the times of `[[mark ID]]` (`bench.clocks.Marks`)."""
_SAY = re.compile(r"\[\[say\]\](.*?)\[\[/say\]\]", re.DOTALL)
_SCRIPT = re.compile(r"\[\[script ([\w-]+)\]\]")
_MARK = re.compile(r"\[\[mark ([\w-]+)\]\]")
_SPLIT = "[[split]]"
_MARKUP = re.compile(r"(</?(?:think|tool_call)>)")
_PIECE = 3
_CLOSER = "</tool_call>"


class Writing(Struct, frozen=True):
    """A turn's output, the end token included."""

    ids: list[int]
    closer: int | None = None
    """Index of the token that ends the first call."""
    mark: str = ""
    """Name under which the time of that token is recorded."""


class Writer:
    """The outputs for one model."""

    def __init__(self, model: Path, scripts: Mapping[str, Sequence[str]], end: int) -> None:
        """`model`: its directory; `end`: the token that ends a turn."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._scripts = scripts
        self._end = end
        self._closer = self._tokenizer.token_to_id(_CLOSER)

    @classmethod
    def of(cls, model: Path, environ: Mapping[str, str] = os.environ) -> "Writer":
        """With the scripts that the environment names. Raises OSError, msgspec.MsgspecError,
        KeyError."""
        generation = msgspec.json.decode((model / "generation_config.json").read_bytes())
        ends = generation["eos_token_id"]
        scripts: dict[str, list[str]] = {}
        if SCRIPTS in environ:
            scripts = msgspec.json.decode(
                Path(environ[SCRIPTS]).read_bytes(), type=dict[str, list[str]]
            )
        return cls(model, scripts, ends[0] if isinstance(ends, list) else ends)

    def write(self, prompt_ids: Sequence[int], form: OutputFormat | None = None) -> Writing | None:
        """The output that follows this prompt; None: the model is free."""
        prompt = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        text, request = self._text(prompt, form)
        if text is None:
            return None
        ids = [*self._encode(text, split=_SPLIT in request), self._end]
        closer = ids.index(self._closer) if self._closer in ids else None
        mark = _MARK.search(request)
        return Writing(ids, closer, mark[1] if mark else "")

    def _text(self, prompt: str, form: OutputFormat | None) -> tuple[str | None, str]:
        """The text, and the user's request."""
        view = read_prompt(prompt)
        turns: Sequence[str] = _SAY.findall(view.request)
        if script := _SCRIPT.search(view.request):
            turns = self._scripts[script[1]]
        if turns:
            return (turns[view.answers] if view.answers < len(turns) else None), view.request
        if "[[free]]" in prompt or not view.chat:
            return None, view.request
        text = act(prompt, family("qwen3_coder"), form)
        if form is not None:
            with suppress(msgspec.DecodeError):  # without the white space that a grammar may forbid
                text = msgspec.json.encode(msgspec.json.decode(text)).decode()
        return text, view.request

    def _encode(self, text: str, *, split: bool) -> list[int]:
        """`split`: in tokens that the tokenizer would hardly choose, but for markup."""
        ids: list[int] = []
        for part in _MARKUP.split(text) if split else [text]:
            size = _PIECE if split and not _MARKUP.fullmatch(part) else max(len(part), 1)
            for at in range(0, len(part), size):
                piece = part[at : at + size]
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids
