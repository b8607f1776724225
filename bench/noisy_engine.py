"""An engine whose model is meant to call the tool that the prompt names, and errs: each logit has
noise. Without weights; for `bench.guided_calls`."""

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy
from msgspec.structs import replace
from tokenizers import Tokenizer

from bench.call_tools import arguments_for
from schemas.events import FinishReason
from services.families import find_family
from services.worker.engine import EngineInfo, EngineRequest
from services.worker.engines.guide import NO_GUIDE, Guides, load_guides
from turnwire_tools.script.engine import ScriptEngine
from turnwire_tools.script.player import Playback, PlayDirective

INTENDED = 12.0
"""Logit of the next token of what the model means to write."""
NEAR = 2.0
"""Logit of the other tokens of that: models repeat and skip."""
AHEAD = 8
"""Tokens that the model may skip without losing its place."""
_TASK = re.compile(r"Task (\d+): use the tool (\w+)\.")
_TAIL = 96


class NoisyEngine(ScriptEngine):
    """The script engine with a model of its own: `engine_args.noise` is the noise's standard
    deviation."""

    async def start(self) -> EngineInfo:
        """As for the script engine; with llguidance it has the feature `grammar`."""
        info = await super().start()
        guides = load_guides(self._config.model, self._vocabulary_size, trust_remote_code=False)
        noise = float((self._config.engine_args or {}).get("noise", 2.0))
        self._source: Any = NoisyModel(self._config.model, self._vocabulary_size, guides, noise)
        if guides is None:
            return info
        return replace(info, features=info.features | {"grammar"})


class NoisyModel:
    """Takes the place of the source of scripts."""

    def __init__(self, model: str, vocabulary: int, guides: Guides | None, noise: float) -> None:
        self._tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
        self._style = find_family("qwen3_coder").style
        self._vocabulary = vocabulary
        self._guides = guides
        self._noise = noise

    def find_script(self, request: EngineRequest) -> None:
        """Has nothing to read: the engine has no scripts."""

    def output(self, request: EngineRequest) -> tuple[PlayDirective, Playback]:
        """Writes a turn."""
        prompt_end = len(request.token_ids) - request.resumed
        written = list(request.token_ids[prompt_end:])
        intended = self._intended(request.token_ids[prompt_end - _TAIL : prompt_end])
        guide: Any = (self._guides and self._guides.open(request)) or NO_GUIDE
        guide.advance(written)
        rng = numpy.random.default_rng(zlib.crc32(f"{request.id} {len(written)}".encode()))
        place = min(len(written), len(intended))
        ids: list[int] = []
        stops = request.stop_ids
        while len(ids) < (request.sampling.max_tokens or 0):
            logits = rng.normal(0, self._noise, self._vocabulary)
            logits[list(intended)] += NEAR
            goal = intended[place] if place < len(intended) else stops[0]
            logits[goal] += INTENDED
            allowed = guide.allowed(self._vocabulary, stops)
            if allowed is not None:
                logits[~allowed] = -numpy.inf
            token = int(logits.argmax())
            if token in stops:
                return PlayDirective("-"), Playback(ids, [], FinishReason.STOP, token)
            guide.advance([token])
            ids.append(token)
            ahead = intended[place : place + AHEAD]
            if token in ahead:
                place += ahead.index(token) + 1
        return PlayDirective("-"), Playback(ids, [], FinishReason.LENGTH)

    def _intended(self, tail: Sequence[int]) -> list[int]:
        """What the model means to write after a prompt with this end."""
        text = self._tokenizer.decode(list(tail), skip_special_tokens=False)
        number, name = _TASK.findall(text)[-1]
        call = self._style.write_call(name, arguments_for(name, int(number)))
        return list(self._tokenizer.encode(f"I look.\n\n{call}", add_special_tokens=False).ids)
