"""The engine `llamacpp`: a GGUF file, token ids in and token ids out.

llama.cpp runs on a thread of its own (`decoder.py`); what a step has decoded comes back to the
event loop in one call.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from typing_extensions import override

from schemas.control import Load
from schemas.errors import Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import local_folder, read_facts, with_defaults
from services.worker.engine import (
    Engine,
    EngineDelta,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    Sink,
    load_failure,
)
from services.worker.engines.daemon_threads import in_daemon_thread, run_for
from services.worker.engines.guide import load_guides
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.features import FEATURES

from .decoder import Decoder, EngineArgs, Turn

BLOCK_TOKENS = 32
"""The unit in which other processes learn what is in the cache; llama.cpp finds single tokens."""
LACKING = {
    "kv_events": "llama.cpp reports no changes of its cache",
    "retention": "llama.cpp keeps the turns that were used last",
}
GUIDED = "needs llguidance (pip install llguidance) and a tokenizer that it can read"


def parse_args(config: WorkerConfig) -> EngineArgs:
    """Converts `engine_args`. Raises Invalid, which names the field."""
    try:
        return msgspec.convert(config.engine_args or {}, EngineArgs)
    except msgspec.ValidationError as error:
        raise Invalid(f"engine_args of the llamacpp engine: {error}", param="engine_args") from None


def find_gguf(model: str, args: EngineArgs) -> Path:
    """Returns the model's GGUF file. Raises Invalid if there is none, or more than one to choose
    from."""
    if args.gguf is not None:
        path = Path(args.gguf).expanduser()
        if not path.is_file():
            raise Invalid(f"engine_args.gguf: there is no file {path}", param="engine_args")
        return path
    folder = local_folder(model)
    found = sorted(folder.glob("*.gguf")) if folder is not None else []
    # A file in parts has the number of the part in each name; llama.cpp takes the first, and finds
    # the others.
    whole = [path for path in found if "-of-" not in path.stem or "-00001-of-" in path.stem]
    if len(whole) != 1:
        many = f"{model} has {len(whole)} GGUF files" if whole else f"{model} has no GGUF file"
        raise Invalid(
            f'{many}: --engine-args \'{{"gguf": "/path/to/file.gguf"}}\' names one',
            param="engine_args",
        )
    return whole[0]


class LlamaCppEngine(Engine):
    """An engine over llama.cpp."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._args = parse_args(config)
        self._turns = OpenTurns("llamacpp", self._stop_decoder)
        self._decoder: Decoder | None = None
        self._thread = threading.Thread(target=self._run, name="llamacpp", daemon=True)
        self._info: EngineInfo

    @staticmethod
    def explain(config: WorkerConfig) -> EngineSupport:
        """Explains the engine (`EngineSupport`) without loading the model."""
        if config.model:
            find_gguf(config.model, parse_args(config))
        lacks = LACKING | (
            {} if find_spec("llguidance") else dict.fromkeys(("guided", "grammar"), GUIDED)
        )
        return EngineSupport(version("llama-cpp-python"), FEATURES - set(lacks), lacks)

    @override
    async def start(self) -> EngineInfo:
        """Loads the model. Raises Invalid if there is no GGUF file, EngineFailed if llama.cpp
        cannot load it."""
        self._loop = asyncio.get_running_loop()
        try:
            self._info = await in_daemon_thread("llamacpp-load", self._load)
        except Invalid:
            raise
        except Exception as error:
            raise load_failure(self._config.model, error) from error
        self._thread.start()
        self._turns.watch(self._config.watchdog_s, lambda: None)
        return self._info

    def _load(self) -> EngineInfo:
        config, args = self._config, self._args
        facts = read_facts(config.model)
        self._own = facts.sampling
        path = find_gguf(config.model, args)
        decoder = self._decoder = Decoder(path, args, slots=config.slots)
        if facts.vocab_size is not None and decoder.vocab_size > facts.vocab_size:
            ids = f"{decoder.vocab_size} token ids, and {config.model} {facts.vocab_size}"
            raise Invalid(
                f"{path.name} is not a file of this model: it has {ids}", param="engine_args"
            )
        window = config.max_model_len or facts.window or decoder.trained_window
        limit = decoder.allocate(window, config.kv_tokens)
        self._guides = load_guides(
            config.model, decoder.vocab_size, trust_remote_code=config.trust_remote_code
        )
        lacks = LACKING | ({} if self._guides else dict.fromkeys(("guided", "grammar"), GUIDED))
        return EngineInfo(
            name="llamacpp",
            version=version("llama-cpp-python"),
            max_model_len=min(window, decoder.cells),
            slots=decoder.slots,
            block_tokens=BLOCK_TOKENS,
            kv_tokens=decoder.cells,
            eos_ids=sorted({*facts.eos_ids, *decoder.end_ids}),
            features=FEATURES - set(lacks),
            vocab_size=decoder.vocab_size,
            lacking=lacks,
            full_len=window,
            limit=limit,
        )

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        assert self._decoder is not None
        guide = None if self._guides is None else self._guides.open(request)
        decoding = Turn(request, with_defaults(request.sampling, self._own), guide)
        opened = self._turns.open(request.id, sink, decoding.close)
        decoding.deliver = opened.put
        self._decoder.add(decoding)
        return opened

    @override
    def load(self) -> Load:
        used = min(1.0, self._decoder.used / self._decoder.cells) if self._decoder else None
        slots = self._decoder.slots if self._decoder else self._config.slots
        return self._turns.load(slots, self._config.queue_limit, used)

    @override
    def death(self) -> str | None:
        return self._turns.death

    @override
    async def stop(self, grace_s: float) -> None:
        self._turns.stop()
        self._stop_decoder()
        if self._thread.ident is not None:
            await run_for(grace_s, "llamacpp-stop", self._thread.join)

    def _stop_decoder(self) -> None:
        if self._decoder is not None:
            self._decoder.stop()

    def _run(self) -> None:
        """Decodes until the engine stops. Runs on the engine's thread."""
        assert self._decoder is not None
        try:
            self._decoder.run(lambda deltas: self._loop.call_soon_threadsafe(self._deliver, deltas))
        except Exception as error:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._turns.die, f"{type(error).__name__}: {error}")

    def _deliver(self, deltas: Sequence[tuple[Turn, EngineDelta]]) -> None:
        self._turns.stepped()
        for turn, delta in deltas:
            turn.deliver(delta)
