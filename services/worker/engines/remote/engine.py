"""An engine over a server of another process. Its answers are not trusted.

Each turn is one streamed request (`server_turn.py`). A server that does not answer any more, or was
started again, counts as a dead engine (`server_watch.py`): the process ends, and its successor
waits for the server.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace
from typing_extensions import override

from schemas.control import VISION, Load
from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.image_processor import NoVision
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import (
    EngineInfo,
    EngineRequest,
    EngineSupport,
    Sink,
    UpdatableEngine,
)
from services.worker.engines.arguments import prompt_ids
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import Dialect, ServerFacts
from services.worker.engines.remote.expert_files import ExpertFiles
from services.worker.engines.remote.http import HttpRefusal, ServerHttp, Unreachable
from services.worker.engines.remote.image_placeholders import ImagePlaceholders
from services.worker.engines.remote.model_check import check_model
from services.worker.engines.remote.server_pause import ServerPause
from services.worker.engines.remote.server_start import (
    engine_info,
    examine_server,
    open_http,
    start_failure,
    wait_for_server,
)
from services.worker.engines.remote.server_turn import ServerTurn
from services.worker.engines.remote.server_watch import ServerWatch
from services.worker.engines.remote.server_weights import ServerWeights
from services.worker.engines.remote.trials import Trials
from services.worker.engines.zmq_events.reader import ZmqKvReader
from services.worker.kv.events import KvEvent

TRIALS_S = 900.0
"""How long the trials may take: on a CPU, vLLM compiles code at the first one for minutes."""


class RemoteEngine(UpdatableEngine):
    """An engine over one server."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._dialect = self.make_dialect(config)
        self._turns = OpenTurns(self._dialect.name)
        self._reader: ZmqKvReader | None = None
        self._images: ImagePlaceholders | None = None
        self._http: ServerHttp
        self._watch: ServerWatch
        self._weights: ServerWeights
        self._experts: ExpertFiles | None = None
        self._server: ServerFacts
        self._model: ModelFacts
        self._info: EngineInfo

    @staticmethod
    @abstractmethod
    def make_dialect(config: WorkerConfig) -> Dialect:
        """Makes the dialect of the server."""

    @classmethod
    def explain(cls, config: WorkerConfig) -> EngineSupport:
        """Explains the engine (`EngineSupport`): asks the server, as a start does."""
        return asyncio.run(_explain(cls(config), config))

    @classmethod
    def examine(cls, config: WorkerConfig) -> ServerFacts:
        """Asks the server once, without decoding. Raises TurnwireError if it does not answer, has
        no token interface or another model."""
        return asyncio.run(examine_server(cls.make_dialect(config), config))

    @override
    async def start(self) -> EngineInfo:
        """Waits for the server, asks for its properties, and tries each feature.

        Raises EngineFailed if it does not answer within `START_S`, Invalid if it has no token
        interface or another model.
        """
        self._http = open_http(self._config)
        pause = ServerPause()
        self._watch = ServerWatch(
            self._http, self._dialect, self._turns, pause, self._config.watchdog_s
        )
        self._weights = ServerWeights(self._http, self._dialect, self._turns, pause)
        try:
            await self._read_properties()
            await self._try_features()
            self._experts = _open_experts(self._config, self._dialect)
        except (HttpRefusal, Unreachable) as error:
            await self.stop(1.0)
            raise start_failure(self._http, error) from error
        except Exception:
            await self.stop(1.0)
            raise
        self._turns.watch(self._config.watchdog_s, self._watch.check)
        self._watch.start()
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        turn = self._turns.open(request.id, sink)
        try:
            prompt = prompt_ids(request, self._info.max_model_len)
            judge = AnswerJudge(request, prompt, self._info.vocab_size)
            ids = prompt
            if request.images:
                assert self._images is not None, "the engine has no vision"
                ids = self._images.with_placeholders(prompt, request.images)
            stream = ServerTurn(
                self._watch,
                request,
                ids,
                self._server,
                self._model,
                weights=self._weights,
                experts=self._experts,
            )
        except Exception:
            turn.close()
            raise
        turn.run(stream.run(turn, judge))
        return turn

    @override
    def load(self) -> Load:
        return self._turns.load(
            self._info.slots, self._config.queue_limit, self._watch.pulse.kv_used
        )

    @override
    def death(self) -> str | None:
        return self._turns.death

    @override
    def adapters(self) -> Sequence[str]:
        return self._watch.pulse.adapters

    @override
    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        if self._reader is not None and self._info.block_tokens is not None:
            async for event in self._reader.read(self._info.block_tokens):
                yield event

    @property
    @override
    def weights_version(self) -> int:
        return self._weights.version

    @property
    @override
    def is_paused_elsewhere(self) -> bool:
        return self._weights.is_paused_elsewhere

    @override
    async def pause(self, *, abort: bool) -> None:
        await self._weights.pause(abort=abort)

    @override
    async def resume(self, *, only_own: bool = False) -> None:
        await self._weights.resume(only_own=only_own)

    @override
    async def update_weights(self, source: str, version: int) -> None:
        """Loads other weights (`UpdatableEngine`). `source`: a path on the server's machine."""
        await self._weights.update(source, version)

    @override
    async def stop(self, grace_s: float) -> None:
        """Stops as `Engine.stop`. The server stays."""
        self._turns.stop()
        if self._reader is not None:
            self._reader.close()
        self._watch.close()
        self._weights.close()
        await self._http.close()

    async def _read_properties(self) -> None:
        """Waits for the server, and reads its properties. Raises as `start`, and Unreachable,
        HttpRefusal."""
        self._model = read_facts(self._config.model)
        server = await wait_for_server(self._http, self._dialect)
        keeps_experts = self._config.routed_experts_dir is not None
        self._server = replace(server, experts=server.experts and keeps_experts)
        await self._watch.begin()
        await self._weights.begin(server.root)
        self._note_lacking(await check_model(self._http, self._dialect, server, self._config))
        if server.kv_endpoint is not None:
            self._reader = ZmqKvReader(server.kv_endpoint)
        await self._read_images()

    async def _read_images(self) -> None:
        """Reads how the model sees images, if the server takes any."""
        if VISION in self._server.lacking:
            return
        try:
            self._images = await asyncio.to_thread(ImagePlaceholders.load, self._config)
        except NoVision as error:
            self._note_lacking({VISION: str(error)})

    async def _try_features(self) -> None:
        """Raises EngineFailed if the server does not decode within `TRIALS_S`."""
        trials = Trials(self, self._info, self._model)
        try:
            async with asyncio.timeout(TRIALS_S):
                self._note_lacking(_with_flags(await trials.run(), self._dialect.flags))
                if self._reader is not None:
                    self._note_lacking(await trials.run_events(self._reader))
                if self._images is not None:
                    self._note_lacking(await trials.run_image(self._images.trial))
        except TimeoutError as error:
            raise EngineFailed(
                f"{self._http.url} answers questions, but has not decoded a few tokens "
                f"in {TRIALS_S:.0f} s"
            ) from error

    def _note_lacking(self, lacking: Mapping[str, str]) -> None:
        self._server = replace(self._server, lacking={**self._server.lacking, **lacking})
        self._info = engine_info(self._dialect, self._server, self._model, self._config)


async def _explain(engine: RemoteEngine, config: WorkerConfig) -> EngineSupport:
    await examine_server(engine.make_dialect(config), config)  # a start would wait for the server
    info = await engine.start()
    await engine.stop(1.0)
    return EngineSupport(info.version, info.features, info.lacking, info.max_model_len)


def _open_experts(config: WorkerConfig, dialect: Dialect) -> ExpertFiles | None:
    """Opens the directory for the experts of this worker's server, if they are kept. Raises
    Invalid."""
    if config.routed_experts_dir is None:
        return None
    server = urlsplit(config.engine_url or "").netloc.replace(":", "-")
    folder = Path(config.routed_experts_dir, server)
    try:
        return ExpertFiles(folder, config.routed_experts_mb, dialect.experts_suffix)
    except OSError as error:
        raise Invalid(f"{folder}: {error}", param="routed_experts_dir") from error


def _with_flags(lacking: Mapping[str, str], flags: Mapping[str, str]) -> dict[str, str]:
    """The reasons, each with the flag of the server that enables the feature."""
    return {
        feature: f"{why} (its flag: `{flags[feature]}`)" if feature in flags else why
        for feature, why in lacking.items()
    }
