"""Chooses what a model with random weights writes, by its prompt.

A user's message contains the texts of the turns that follow it (`[[say]]…[[/say]]`, once for each
turn). Without them, the scripted agent of the demo decides. `[[free]]`: nothing is forced.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from schemas.conversation import OutputFormat
from services.families import find_family
from turnwire_tools.script.agent import act
from turnwire_tools.script.agent_prompt import read_prompt

FORCED = "bench.vllm.forced:Forced"
"""The logits processor that writes it."""
_SAY = re.compile(r"\[\[say\]\](.*?)\[\[/say\]\]", re.DOTALL)
_SPLIT = "[[split]]"
_MARKUP = re.compile(r"(</?(?:think|tool_call)>)")
_PIECE = 3


class Writer:
    """The outputs for the model in a directory."""

    def __init__(self, model: Path) -> None:
        """Raises OSError, msgspec.MsgspecError, KeyError."""
        generation = msgspec.json.decode((model / "generation_config.json").read_bytes())
        ends = generation["eos_token_id"]
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end = ends[0] if isinstance(ends, list) else ends

    def write(
        self, prompt_ids: Sequence[int], form: OutputFormat | None = None
    ) -> list[int] | None:
        """The tokens that follow this prompt, with the end token; None: the model is free."""
        prompt = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        view = read_prompt(prompt)
        if turns := _SAY.findall(view.request):
            text = turns[view.answers] if view.answers < len(turns) else None
        elif "[[free]]" in prompt or not view.chat:
            text = None
        else:
            text = act(prompt, find_family("qwen3_coder"), form)
            if form is not None:
                # without the white space that a grammar may forbid
                with suppress(msgspec.DecodeError):
                    text = msgspec.json.encode(msgspec.json.decode(text)).decode()
        if text is None:
            return None
        return [*self._encode(text, split=_SPLIT in view.request), self._end]

    def _encode(self, text: str, *, split: bool) -> list[int]:
        """`split`: in tokens that the tokenizer would hardly choose, but for markup."""
        ids: list[int] = []
        for part in _MARKUP.split(text) if split else [text]:
            size = _PIECE if split and not _MARKUP.fullmatch(part) else max(len(part), 1)
            for at in range(0, len(part), size):
                piece = part[at : at + size]
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids
