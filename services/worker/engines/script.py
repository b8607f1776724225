"""The script engine: stands for a model and needs none. It says what was written, token by token, at a set pace.

All that an engine has besides a model is real here: slots and a queue, prefill that takes time for tokens which the
prefix cache does not hold, one step for all turns that are due, and every way to end or to fail.

Features: what is written is certain, so that no temperature, penalty, bias or seed changes it; log probabilities are
made up, the same for the same token at the same place (`script_logprobs`); a form (`guided`) is kept by the agent,
while a played script is said as it was written.
"""

import asyncio
import heapq
import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from schemas.control import Load
from schemas.errors import EngineFailed, TurnwireError
from schemas.events import FinishReason
from services.parser import Family, family
from services.runtime.config import WorkerConfig
from services.runtime.model_files import find_file, read_facts, read_json
from services.worker.engine import Delta, EngineInfo, EngineRequest, Sink
from services.worker.engines.prefix_cache import PrefixCache
from services.worker.engines.script_author import Author
from services.worker.engines.script_logprobs import made_up
from services.worker.engines.script_player import Cue, Directive, Playback, Script, parse_file
from services.worker.engines.ticker import NOW, Ticker, aligned, now_us
from services.worker.engines.turns import OpenTurns, Turn

BLOCK_TOKENS = 16
DEFAULT_WINDOW = 131_072
DEFAULT_KV_TOKENS = 4_194_304
"""What the prefix cache remembers where no capacity is set: 100 bytes a block, so some 26 MB."""
FEATURES = frozenset(
    {
        "sampling",
        "seed",
        "min_p",
        "penalties",
        "min_tokens",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "guided",
        "prefix_cache",
        "priority",
        "salt",
    }
)

T = TypeVar("T")


class _Stream:
    """One turn that is being said."""

    __slots__ = (
        "burst",
        "cached",
        "cue",
        "delay_us",
        "ids",
        "keys",
        "logprobs",
        "mark",
        "plain_until",
        "playback",
        "pos",
        "prompt_tokens",
        "put",
        "resumed",
        "running",
        "salt",
        "tail",
        "tell",
        "turn",
        "waiting",
    )

    def __init__(self, request: EngineRequest, keys: Sequence[int]) -> None:
        self.prompt_tokens = len(request.token_ids)
        self.keys = keys
        self.tail = request.token_ids[len(keys) * BLOCK_TOKENS :]
        """What of the prompt fills no block."""
        self.salt = request.cache_salt
        self.resumed = request.resumed
        self.logprobs = request.sampling.logprobs
        self.waiting = False
        self.running = False
        self.delay_us = 0
        self.burst = 1
        self.mark = "-"
        self.pos = 0
        self.cue = 0
        self.plain_until = 0
        """Steps that end before this token hold tokens and nothing else."""
        self.cached: int | None = None
        """Given with the first delta, then None."""
        self.playback: Playback
        self.ids: list[int] = []
        self.turn: Turn
        self.put: Callable[[Delta], None]
        self.tell: Callable[[Delta], None]
        """The sink itself, for steps that end nothing and come only while the turn runs."""

    def plays(self, directive: Directive, playback: Playback, delay_us: int) -> None:
        """What the turn will hear is known."""
        self.playback, self.ids = playback, playback.ids
        self.delay_us, self.burst, self.mark = delay_us, directive.burst, directive.id


class ScriptEngine:
    """`Engine` over written output."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._turns = OpenTurns("script")
        self._ticker: Ticker[_Stream] = Ticker(self._step)
        self._cache = PrefixCache(BLOCK_TOKENS, config.kv_tokens or DEFAULT_KV_TOKENS)
        self._waiting: list[tuple[int, int, _Stream]] = []
        self._order = count()
        self._queued = 0
        self._running = 0
        self._writing: set[asyncio.Task[None]] = set()
        self._kv_held = 0
        self._prefill_free_us = 0
        self._marks = -1
        self._author: Author
        self._loop: asyncio.AbstractEventLoop
        self._vocabulary_size = 0

    async def start(self) -> EngineInfo:
        """Loads the tokenizer and the scripts. Raises OSError or ValueError where they cannot be read."""
        self._loop = asyncio.get_running_loop()
        info = await asyncio.to_thread(self._load)
        marks = (self._config.engine_args or {}).get("marks")
        if marks:
            self._marks = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return info

    def _load(self) -> EngineInfo:
        config = self._config
        facts = read_facts(config.model)
        path = find_file(config.model, "tokenizer.json")
        if path is None:
            raise FileNotFoundError(f"{config.model} has no tokenizer.json")
        tokenizer = Tokenizer.from_file(str(path))
        self._author = Author(
            tokenizer,
            facts.eos_ids,
            _read_scripts(config.script_dir),
            cache(lambda: _family(config)),
            request_mode=config.script_mode == "request",
        )
        if config.script_mode == "agent" and config.script_dir is None:
            self._author.family()  # takes a second: not in the first turn
        self._vocabulary_size = max(facts.vocab_size or 0, tokenizer.get_vocab_size(with_added_tokens=True))
        return EngineInfo(
            name="script",
            version="1",
            max_model_len=config.max_model_len or facts.window or DEFAULT_WINDOW,
            slots=config.slots,
            block_tokens=BLOCK_TOKENS,
            kv_tokens=config.kv_tokens,
            eos_ids=facts.eos_ids,
            features=FEATURES,
            vocab_size=self._vocabulary_size,
        )

    def open(self, request: EngineRequest, sink: Sink) -> Turn:
        """See `Engine.open`."""
        keys = request.block_keys
        if keys is None:
            keys = self._cache.keys(request.token_ids, request.cache_salt)
        stream = _Stream(request, keys)
        stream.turn = turn = self._turns.open(request.id, sink, partial(self._release, stream))
        stream.put, stream.tell = turn.put, sink.put
        try:
            named = self._author.named(request)
        except Exception:
            turn.close()
            raise
        if named is not None:
            self._enqueue(stream, request.priority, *named)
        else:
            writing = self._loop.create_task(self._write(stream, request))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)
        return turn

    async def _write(self, stream: _Stream, request: EngineRequest) -> None:
        """On a thread: the agent reads the whole prompt."""
        try:
            playback = await self._loop.run_in_executor(None, self._author.written, request)
        except TurnwireError as error:
            stream.turn.fail(error)
        except Exception as error:
            stream.turn.fail(EngineFailed(f"the script engine has no words: {type(error).__name__}: {error}"))
        else:
            if not stream.turn.ended:
                self._enqueue(stream, request.priority, Directive("-"), playback)

    def _enqueue(self, stream: _Stream, priority: int, directive: Directive, playback: Playback) -> None:
        delay_ms = self._config.token_delay_ms if directive.delay_ms is None else directive.delay_ms
        stream.plays(directive, playback, round(delay_ms * 1000))
        stream.waiting = True
        self._queued += 1
        heapq.heappush(self._waiting, (-priority, next(self._order), stream))
        self._admit()

    def load(self) -> Load:
        """See `Engine.load`."""
        capacity = self._config.kv_tokens or DEFAULT_KV_TOKENS
        return Load(
            running=self._running,
            waiting=self._queued,
            slots=self._config.slots,
            queue_limit=self._config.queue_limit,
            kv_used=min(1.0, self._kv_held / capacity),
        )

    def healthy(self) -> bool:
        """See `Engine.healthy`."""
        return self._turns.death is None

    async def stop(self, grace_s: float) -> None:
        """See `Engine.stop`."""
        self._ticker.stop()
        self._turns.stop()
        for writing in self._writing:
            writing.cancel()
        if self._marks >= 0:
            os.close(self._marks)
            self._marks = -1

    def _admit(self) -> None:
        """Gives free slots to those who wait: prefill now, first token when it is done."""
        while self._waiting and self._running < self._config.slots and not self._turns.over:
            _, _, stream = heapq.heappop(self._waiting)
            if not stream.waiting:
                continue
            self._queued -= 1
            self._running += 1
            stream.waiting, stream.running = False, True
            self._kv_held += stream.prompt_tokens
            # The last token is always computed: without it there is nothing to decode from.
            held = self._cache.match(stream.keys, (stream.prompt_tokens - 1) // BLOCK_TOKENS)
            stream.cached = held * BLOCK_TOKENS
            self._ticker.add(stream, self._prefilled_at(stream.prompt_tokens - stream.cached))

    def _prefilled_at(self, tokens: int) -> int:
        """When `tokens` more are computed; prompts are, one after the other."""
        if not self._config.prefill_tokens_per_s:
            return NOW
        start = max(now_us(), self._prefill_free_us)
        self._prefill_free_us = start + round(tokens * 1e6 / self._config.prefill_tokens_per_s)
        return self._prefill_free_us

    def _step(self, stream: _Stream, now: int) -> int | None:
        """One engine step of one turn; returns when the next one is due."""
        try:
            end = stream.pos + stream.burst
            if end >= stream.plain_until:
                return self._say(stream, now) if stream.running else None
            ids = stream.ids[stream.pos : end]
            self._kv_held += end - stream.pos
            stream.pos = end
            stream.tell(Delta(ids))
            delay = stream.delay_us
            return (now // delay + 1) * delay if delay else NOW  # `aligned`, without the call
        except Exception as error:  # the ticker serves all turns: an error here must end them, not leave them hanging
            self._die(f"{type(error).__name__}: {error}")
            return None

    def _say(self, stream: _Stream, now: int) -> int | None:
        """A step that may hold more than tokens."""
        playback = stream.playback
        first = stream.pos == 0 and stream.cue == 0
        ahead = len(playback.ids)
        while stream.cue < len(playback.cues):
            at, cue = playback.cues[stream.cue]
            if at > stream.pos:
                ahead = at
                break
            stream.cue += 1
            if cue.kind in {"pause", "fail", "die", "silence"}:
                if first:
                    self._cache.insert(stream.keys)
                return self._interrupt(stream, cue, now)
            self._pace(stream, cue)
        end = min(stream.pos + stream.burst, ahead)
        ids = playback.ids[stream.pos : end]
        stream.pos = end
        stream.plain_until = ahead if stream.logprobs is None else 0
        self._kv_held += len(ids)
        delta = Delta(ids, cached=stream.cached)
        stream.cached = None
        if stream.logprobs is not None:
            at = stream.resumed + end - len(ids)
            delta.logprobs = [
                made_up(token, at + n, stream.logprobs, self._vocabulary_size) for n, token in enumerate(ids)
            ]
        if end == len(playback.ids) and (playback.finish is FinishReason.LENGTH or not ids):
            delta.finish, delta.stop_id = playback.finish, playback.stop_id
        if first and stream.running:
            self._afterwards(self._cache.insert, stream.keys)
        stream.put(delta)
        return aligned(now, stream.delay_us) if stream.running and stream.delay_us else NOW if stream.running else None

    def _interrupt(self, stream: _Stream, cue: Cue, now: int) -> int | None:
        """A cue that no token follows in this step."""
        if cue.kind == "pause":
            return aligned(now + round(cue.amount * 1000), stream.delay_us)
        if cue.kind == "die":
            self._die(cue.text or "it was told to")
        elif cue.kind == "fail":
            stream.turn.fail(EngineFailed(cue.text or "the script fails here"))
        return None  # `silence`: the turn keeps its slot until it is cancelled

    def _pace(self, stream: _Stream, cue: Cue) -> None:
        if cue.kind == "delay":
            stream.delay_us = round(cue.amount * 1000)
        elif cue.kind == "burst":
            stream.burst = max(1, int(cue.amount))
        elif self._marks >= 0:
            # One write each, so that whoever reads the file sees whole lines.
            os.write(self._marks, f"{stream.mark} {cue.text} {time.monotonic_ns()}\n".encode())

    def _release(self, stream: _Stream) -> None:
        """The turn is over for the engine: its slot is free, its tokens stay in the cache."""
        if stream.waiting:
            stream.waiting = False
            self._queued -= 1
        if not stream.running:
            return
        stream.running = False
        stream.plain_until = 0
        self._running -= 1
        self._kv_held -= stream.prompt_tokens + stream.pos
        if stream.pos:
            self._afterwards(self._keep, stream)
        self._admit()

    def _afterwards(self, work: Callable[[T], None], of: T) -> None:
        """Book-keeping, when the frame of this step has left: that is sent at the end of the loop's next turn."""
        self._loop.call_soon(self._loop.call_soon, work, of)

    def _keep(self, stream: _Stream) -> None:
        rest = [*stream.tail, *stream.ids[: stream.pos]]
        self._cache.insert(self._cache.extend(stream.keys, rest, stream.salt))

    def _die(self, reason: str) -> None:
        self._ticker.stop()
        self._turns.die(reason)


def _read_scripts(folder: str | None) -> dict[str, Script]:
    scripts: dict[str, Script] = {}
    for path in sorted(Path(folder).iterdir()) if folder else []:
        if path.is_file():
            scripts |= parse_file(path.name, path.read_text(encoding="utf-8"))
    return scripts


def _family(config: WorkerConfig) -> Family:
    """The configured family, or the one in whose form the model's chat template writes calls."""
    if config.family != "auto":
        return family(config.family)
    # The preprocessor's own way to tell, so that both mean the same. transformers takes 1.5 s to import: not above.
    from services.preprocessor.detection import detect_family
    from services.preprocessor.probe import probe
    from services.preprocessor.template import ChatTemplate

    template = ChatTemplate.load(config.model, trust_remote_code=config.trust_remote_code)
    found = detect_family(template, probe(template), read_json(config.model, "config.json") or {})
    return found.family if found is not None else family("hermes")
