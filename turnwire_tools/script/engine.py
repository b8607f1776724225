"""The script engine: stands for a model and needs none. It emits written output, token by token, at
a set pace.

All that an engine has besides a model is real here: slots and a queue, prefill that takes time for
tokens which the prefix cache does not hold, one step for all turns that are due, and every way to
end or to fail.

The output is fixed, so that no temperature, penalty, bias or seed changes it; log probabilities are
synthetic, the same for the same token at the same place; structured output (`guided`) is the
agent's, while scripts play as written.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Condition

import msgspec
from cachetools import cached
from tokenizers import Tokenizer
from typing_extensions import override

from schemas.control import Load
from schemas.errors import EngineFailed, Invalid, TurnwireError
from schemas.token_ids import pack_ids, unpack_array
from services.families import Family, find_family
from services.families.response_template import template_name
from services.runtime.config.stages import WorkerConfig
from services.runtime.nats.requests import after_sending
from services.templates.chat_template import ChatTemplate
from services.templates.detection import detect_family
from services.templates.probe import probe
from services.tokenization.block_keys import block_keys, with_images
from services.tokenization.model_files import (
    find_file,
    read_facts,
    read_json,
    read_response_template,
)
from services.tokenization.tokenizer_files import load_tokenizer
from services.worker.engine import (
    EngineDelta,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    Sink,
    UpdatableEngine,
)
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.features import FEATURES
from services.worker.kv.cached_blocks import CachedBlocks
from turnwire_tools.script.output_source import OutputSource
from turnwire_tools.script.player import Action, Playback, PlayDirective, Script, parse_file
from turnwire_tools.script.steps import Steps
from turnwire_tools.script.stream import MarkFile, ScriptedStream
from turnwire_tools.script.ticker import NOW, aligned, now_us

LACKING = {
    "kv_events": "its cache is simulated",
    "grammar": "its agent writes calls by its own rules",
    "retention": "its cache is simulated",
}
"""The features that it lacks, and why."""
BLOCK_TOKENS = 16
DEFAULT_WINDOW = 131_072
DEFAULT_KV_TOKENS = 4_194_304
"""Capacity of the prefix cache where none is set: 100 bytes a block, so some 26 MB."""


class WeightsScript(msgspec.Struct):
    """What happens when weights are loaded, for tests."""

    seconds: float = 0.0
    """How long it takes."""
    fail: str | None = None
    """Why they cannot be loaded."""
    die: str | None = None
    """Why the engine dies of them."""


class ScriptEngine(UpdatableEngine):
    """An engine over written output."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._capacity = config.kv_tokens or DEFAULT_KV_TOKENS
        self._steps: Steps[ScriptedStream] = Steps(self._step)
        self._turns = OpenTurns("script", self._steps.stop)
        self._cache = CachedBlocks(max(1, self._capacity // BLOCK_TOKENS))
        self._waiting: list[tuple[float, ScriptedStream]] = []
        """(-priority, turn), the next one first."""
        self._running: set[ScriptedStream] = set()
        self._marks = MarkFile()
        self._source: OutputSource
        self._loop: asyncio.AbstractEventLoop
        self._vocabulary_size = 0
        self._weights = 0

    @override
    async def start(self) -> EngineInfo:
        """Loads the tokenizer and the scripts. Raises OSError or ValueError where they cannot be
        read."""
        self._loop = asyncio.get_running_loop()
        info = await asyncio.to_thread(self._load)
        marks = (self._config.engine_args or {}).get("marks")
        if marks:
            self._marks.open(marks)
        return info

    def _load(self) -> EngineInfo:
        config = self._config
        facts = read_facts(config.model)
        path = find_file(config.model, "tokenizer.json")
        if path is None:
            raise FileNotFoundError(f"{config.model} has no tokenizer.json")
        tokenizer = Tokenizer.from_file(str(path))
        self._source = _output_source(config, tokenizer, facts.eos_ids)

        written_ids = tokenizer.get_vocab_size(with_added_tokens=True)
        self._vocabulary_size = max(facts.vocab_size or 0, written_ids)
        return EngineInfo(
            name="script",
            version="1",
            max_model_len=config.max_model_len or facts.window or DEFAULT_WINDOW,
            slots=config.slots,
            block_tokens=BLOCK_TOKENS,
            kv_tokens=config.kv_tokens,
            eos_ids=facts.eos_ids,
            features=FEATURES - LACKING.keys(),
            vocab_size=self._vocabulary_size,
            lacking=LACKING,
        )

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """Every feature, and why grammars and KV events are not among them."""
        return EngineSupport("1", FEATURES - LACKING.keys(), LACKING)

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        """Opens a turn, which plays from the next tick on."""
        keys = request.block_keys
        ids = request.token_ids
        if request.images:
            ids = unpack_array(with_images(pack_ids(ids), request.images))
        if keys is None:
            keys = block_keys(pack_ids(ids), BLOCK_TOKENS, salt=request.cache_salt)
        script = None if request.images else self._source.find_script(request)
        turn = self._turns.open(request.id, sink, lambda: self._release(stream))
        stream = ScriptedStream(
            prompt_tokens=len(request.token_ids),
            keys=keys,
            tail=ids[len(keys) * BLOCK_TOKENS :],
            salt=request.cache_salt,
            resumed=request.resumed,
            logprobs=request.sampling.logprobs,
            turn=turn,
            put_running=sink.put,
            opened_us=now_us(),
        )
        if script is not None:
            self._enqueue(stream, request.priority, *script)
        else:
            turn.run(self._write(stream, request))
        return turn

    async def _write(self, stream: ScriptedStream, request: EngineRequest) -> None:
        """On a thread: the agent reads the whole prompt, and its images."""
        try:
            written = await self._loop.run_in_executor(None, self._source.output, request)
        except TurnwireError as error:
            stream.turn.fail(error)
        except Exception as error:
            stream.turn.fail(
                EngineFailed(f"the script engine has no output: {type(error).__name__}: {error}")
            )
        else:
            self._enqueue(stream, request.priority, *written)

    def _enqueue(
        self, stream: ScriptedStream, priority: float, directive: PlayDirective, playback: Playback
    ) -> None:
        stream.play(directive, playback, self._config.token_delay_ms)
        insort(self._waiting, (-priority, stream), key=itemgetter(0))
        self._admit()

    @override
    def adapters(self) -> Sequence[str]:
        """Names of LoRA adapters (`engine_args.adapters`), which share no cache."""
        names: Sequence[str] = (self._config.engine_args or {}).get("adapters", ())
        return names

    # -- weights

    @property
    @override
    def weights_version(self) -> int:
        """The version that decodes now."""
        return self._weights

    @override
    async def pause(self, *, abort: bool) -> None:
        """Stops all steps and prefills."""
        self._steps.pause()
        if abort:
            self._turns.abort("the engine was paused")

    @override
    async def resume(self, *, only_own: bool = False) -> None:
        """Steps again."""
        if self._steps.paused and not self._turns.over:
            self._steps.resume()
            self._admit()

    @override
    async def update_weights(self, source: str, version: int) -> None:
        """Takes a directory as weights, which change nothing but the version. Its `script.json`, if
        it has one, is a `WeightsScript`."""
        script = _read_weights(source)
        await asyncio.sleep(script.seconds)
        if script.die is not None:
            self._turns.die(script.die)
            raise self._turns.died()
        if script.fail is not None:
            raise EngineFailed(script.fail)
        self._weights = version
        for stream in self._running:
            stream.plain_until = 0

    @override
    def load(self) -> Load:
        """Turns that play, and the simulated cache."""
        tokens = sum(stream.prompt_tokens + stream.pos for stream in self._running)
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            slots=self._config.slots,
            queue_limit=self._config.queue_limit,
            kv_used=min(1.0, tokens / self._capacity),
        )

    @override
    def death(self) -> str | None:
        return self._turns.death

    @override
    async def stop(self, grace_s: float) -> None:
        """Ends all turns."""
        self._steps.stop()
        self._turns.stop()
        self._marks.close()

    def _admit(self) -> None:
        """Gives free slots to waiting turns: prefill now, the first token when it is done."""
        if self._steps.paused:
            return
        while self._waiting and len(self._running) < self._config.slots and not self._turns.over:
            _, stream = self._waiting.pop(0)
            self._running.add(stream)
            # The last token is always computed: without it there is nothing to decode from.
            held = min(self._cache.match(stream.keys), (stream.prompt_tokens - 1) // BLOCK_TOKENS)
            self._cache.use(stream.keys[:held])
            stream.cached = held * BLOCK_TOKENS
            stream.waited_s = (now_us() - stream.opened_us) / 1e6
            tokens_per_s = self._config.prefill_tokens_per_s
            if tokens_per_s:
                self._steps.prefills.add(
                    stream, (stream.prompt_tokens - stream.cached) / tokens_per_s
                )
            else:
                self._steps.ticker.add(stream)

    def _step(self, stream: ScriptedStream, now: int) -> int | None:
        """One engine step of one turn; returns when the next one is due."""
        try:
            end = stream.pos + stream.burst
            if end >= stream.plain_until:
                return self._full_step(stream, now) if stream in self._running else None
            ids = stream.ids[stream.pos : end]
            stream.pos = end
            put = stream.put_running  # as in `Decoding.put`
            put(EngineDelta(ids))
            delay = stream.delay_us
            return (now // delay + 1) * delay if delay else NOW  # `aligned`, without the call
        # the ticker serves all turns: an error here must end them, not leave them hanging
        except Exception as error:
            self._turns.die(f"{type(error).__name__}: {error}")
            return None

    def _full_step(self, stream: ScriptedStream, now: int) -> int | None:
        """A step that may hold more than tokens."""
        is_first = stream.pos == 0 and stream.action == 0
        interruption = stream.take_actions(self._marks)
        if interruption is not None:
            if is_first:
                self._cache.use(stream.keys)
            return self._interrupt(stream, interruption, now)

        delta = stream.next_delta(self._vocabulary_size, self._weights)
        if is_first:
            after_sending(self._cache.use, stream.keys)
        stream.turn.put(delta)
        if stream not in self._running:
            return None
        return aligned(now, stream.delay_us) if stream.delay_us else NOW

    def _interrupt(self, stream: ScriptedStream, action: Action, now: int) -> int | None:
        """An action that no token follows in this step."""
        if action.kind == "pause":
            return aligned(now + round(action.amount * 1000), stream.delay_us)
        if action.kind == "die":
            self._turns.die(action.text or "the script ends it")
        elif action.kind == "fail":
            stream.turn.fail(EngineFailed(action.text or "the script fails here"))
        return None  # `silence`: the turn keeps its slot until it is cancelled

    def _release(self, stream: ScriptedStream) -> None:
        """The turn has ended: its slot is free, its tokens stay in the cache."""
        if stream not in self._running:
            self._waiting = [entry for entry in self._waiting if entry[1] is not stream]
            return
        self._running.remove(stream)
        self._steps.prefills.remove(stream)
        stream.plain_until = 0
        if stream.pos:
            after_sending(_keep, self._cache, stream)
        self._admit()


def _keep(cache: CachedBlocks, stream: ScriptedStream) -> None:
    cache.use(stream.all_keys(BLOCK_TOKENS))


def _output_source(
    config: WorkerConfig, tokenizer: Tokenizer, eos_ids: Sequence[int]
) -> OutputSource:
    request_mode = config.script_mode == "request"
    scripts = _read_scripts(config.script_dir)
    # A model's first detection starts a process that imports transformers, which takes seconds:
    # here, or else on the thread of the first turn that needs it, while others wait for the
    # result.
    detected: Callable[[], Family] = cached({}, condition=Condition())(lambda: _family(config))
    if not scripts and not request_mode:
        detected()
    return OutputSource(tokenizer, eos_ids, scripts, detected, request_mode=request_mode)


def _read_weights(source: str) -> WeightsScript:
    """What happens when these weights are loaded. Raises Invalid where there are none."""
    folder = Path(source)
    if not folder.is_dir():
        raise Invalid(f"source: there is no directory {folder.name}")
    file = folder / "script.json"
    if not file.is_file():
        return WeightsScript()
    return msgspec.json.decode(file.read_bytes(), type=WeightsScript)


def _read_scripts(folder: str | None) -> dict[str, Script]:
    """The scripts in the files of a folder, by name."""
    if not folder:
        return {}
    scripts: dict[str, Script] = {}
    for path in sorted(Path(folder).iterdir()):
        if path.is_file():
            scripts |= parse_file(path.name, path.read_text(encoding="utf-8"))
    return scripts


def _family(config: WorkerConfig) -> Family:
    """The configured family, or the one that the preprocessor detects for the model's chat
    template."""
    if config.family != "auto":
        return find_family(config.family)
    description = read_response_template(config.model, config.response_template)
    if config.response_template is not None:
        return find_family(template_name(description or ""))
    tokenizer = load_tokenizer(config.model, trust_remote_code=config.trust_remote_code)
    template = ChatTemplate.of(tokenizer)
    config_json = read_json(config.model, "config.json") or {}
    detected = detect_family(template, probe(template), config_json, (), description)
    return find_family("hermes") if detected is None else detected.family
