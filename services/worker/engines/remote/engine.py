"""An engine over a server of another process. Its answers are not trusted.

Each turn is one streamed request. What ends it early is told apart: the server refused the request
(the turn fails), its answer is broken (the turn fails: its tokens could be wrong), or the
connection broke (another worker, or this one, continues the turn). A server that does not answer
any more, or was started again, counts as a dead engine: the process ends, and its successor waits
for the server.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from schemas.control import VISION, Load
from schemas.errors import EngineFailed, Invalid, NotFound, TurnwireError
from services.runtime.config import WorkerConfig, read_secret
from services.tokenization.model_files import ModelFacts, read_facts
from services.worker.engine import (
    FEATURES,
    AdapterSource,
    Engine,
    EngineDied,
    EngineInfo,
    EngineRequest,
    EngineSupport,
    KvEvent,
    KvEventSource,
    Sink,
)
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import Call, Chunk, Dialect, Pulse, ServerFacts
from services.worker.engines.remote.http import Refused, ServerHttp, Unreachable, Untrusted
from services.worker.engines.remote.images import ImagePrompts, open_image_prompts
from services.worker.engines.remote.model_check import check_model
from services.worker.engines.remote.trials import Trials
from services.worker.engines.support import EngineTurn, OpenTurns, prompt_ids
from services.worker.engines.vllm.kv_reader import VllmKvReader

START_S = 60.0
"""How long a start waits for a server that does not answer yet."""
RETRY_S = 0.5
BUSY_S = 5.0
"""How long a turn is sent again to a server that refuses it for now."""
_BUSY = frozenset((408, 425, 429, 503))
PULSE_S = 1.0
"""Interval of the signs of life."""
PULSE_LIMIT_S = 5.0
SILENT_PULSES = 3
"""The number of failures in succession after which the server counts as dead."""


class RemoteEngine(Engine, KvEventSource, AdapterSource):
    """An engine over one server."""

    def __init__(self, config: WorkerConfig, dialect: Dialect) -> None:
        self._config = config
        self._dialect = dialect
        self._turns = OpenTurns(dialect.name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: VllmKvReader | None = None
        self._images: ImagePrompts | None = None
        self._pulse = Pulse()
        self._has_heard = False
        """Whether a part of an answer has come since the last request for a sign of life."""
        self._http: ServerHttp
        self._server: ServerFacts
        self._model: ModelFacts
        self._info: EngineInfo

    @classmethod
    def explain(cls, config: WorkerConfig) -> EngineSupport:
        """Explains the engine (`EngineSupport`): asks the server, as a start does."""
        return asyncio.run(cls(config)._explain())  # type: ignore[call-arg]

    async def _explain(self) -> EngineSupport:
        info = await self.start()
        await self.stop(1.0)
        return EngineSupport(info.version, info.features, info.lacking)

    @classmethod
    def examine(cls, config: WorkerConfig) -> None:
        """Asks the server once, without decoding. Raises TurnwireError if it does not answer, has
        no token interface or another model."""
        asyncio.run(cls(config)._examine())  # type: ignore[call-arg]

    async def _examine(self) -> None:
        http = ServerHttp(_url(self._config), _api_key(self._config))
        try:
            server = await self._dialect.describe(http)
            await check_model(http, self._dialect, server, self._config)
        except (Refused, Unreachable) as error:
            raise _no_start(http, error) from error
        finally:
            await http.close()

    @override
    async def start(self) -> EngineInfo:
        """Waits for the server, asks for its properties, and tries each feature.

        Raises EngineFailed if it does not answer within `START_S`, Invalid if it has no token
        interface or another model.
        """
        self._http = ServerHttp(_url(self._config), _api_key(self._config))
        try:
            self._model = read_facts(self._config.model)
            self._server = await self._ask()
            self._pulse = await self._dialect.pulse(self._http)
            await check_model(self._http, self._dialect, self._server, self._config)
            if self._server.kv_endpoint is not None:
                self._reader = VllmKvReader(self._server.kv_endpoint)
            await self._read_images()
            self._info = self._make_info()
            trials = Trials(self, self._info, self._model)
            self._note_lacking(await trials.run())
            if self._images is not None:
                self._note_lacking(await trials.run_image(self._images.trial()))
            self._info = self._make_info()
        except (Refused, Unreachable) as error:
            await self.stop(1.0)
            raise _no_start(self._http, error) from error
        except Exception:
            await self.stop(1.0)
            raise
        self._turns.watch(self._config.watchdog_s, lambda: None)
        self._spawn(self._watch_server())
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        turn = self._turns.open(request.id, sink)
        try:
            prompt = prompt_ids(request, self._info.max_model_len)
            ids = prompt
            if request.images:
                assert self._images is not None, "the engine has no vision"
                ids = self._images.with_placeholders(prompt, request.images)
            call = self._dialect.generate(request, ids, self._server, self._model)
        except Exception:
            turn.close()
            raise
        judge = AnswerJudge(request, prompt, self._info.vocab_size)
        turn.run(self._pump(turn, self._chunks(request, ids, call), judge))
        return turn

    @override
    def load(self) -> Load:
        return self._turns.load(self._info.slots, self._config.queue_limit, self._pulse.kv_used)

    @override
    def healthy(self) -> bool:
        return self._turns.death is None

    @override
    def adapters(self) -> Sequence[str]:
        return self._pulse.adapters

    @override
    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        if self._reader is not None and self._info.block_tokens is not None:
            async for event in self._reader.read(self._info.block_tokens):
                yield event

    @override
    async def stop(self, grace_s: float) -> None:
        """Stops as `Engine.stop`. The server stays."""
        self._turns.stop()
        if self._reader is not None:
            self._reader.close()
        for task in self._tasks:
            task.cancel()
        await self._http.close()

    async def _ask(self) -> ServerFacts:
        """Waits until the server answers. Raises Unreachable, Refused, Invalid."""
        end = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                return await self._dialect.describe(self._http)
            except Untrusted:
                raise
            except (Unreachable, Refused) as error:
                loads = isinstance(error, Unreachable) or error.status == 503
                if not loads or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _read_images(self) -> None:
        """Reads how the model sees images, if the server takes any."""
        if VISION in self._server.lacking:
            return
        try:
            self._images = await asyncio.to_thread(open_image_prompts, self._config)
        except (ValueError, OSError, ImportError) as error:
            self._note_lacking({VISION: str(error)})

    def _note_lacking(self, lacking: Mapping[str, str]) -> None:
        self._server = replace(self._server, lacking={**self._server.lacking, **lacking})

    def _make_info(self) -> EngineInfo:
        server, model = self._server, self._model
        window = min(
            limit
            for limit in (server.max_model_len, self._config.max_model_len, model.window, 1 << 20)
            if limit is not None
        )
        return EngineInfo(
            name=self._dialect.name,
            version=server.version,
            max_model_len=window,
            slots=server.slots or self._config.slots,
            block_tokens=server.block_tokens if "prefix_cache" not in server.lacking else None,
            kv_tokens=server.kv_tokens,
            eos_ids=model.eos_ids,
            features=FEATURES - server.lacking.keys(),
            vocab_size=model.vocab_size,
            lacking=server.lacking,
            shares_queued=self._dialect.shares_queued,
            recomputed_blocks=server.recomputed_blocks,
        )

    async def _pump(
        self, turn: EngineTurn, answer: AsyncGenerator[Chunk, None], judge: AnswerJudge
    ) -> None:
        """Passes the server's answer to the turn."""
        try:
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    self._turns.stepped()
                    self._has_heard = True
                    delta = judge.read(chunk)
                    if delta is not None:
                        turn.put(delta)
                    if chunk.closes:
                        break
            turn.put(judge.end())
        except Refused as refusal:
            await self._fail(turn, self._refusal(refusal))
        except Unreachable as error:
            broken = EngineDied(f"the connection to {self._http.url} broke: {error}")
            await self._fail(turn, broken)
        except TurnwireError as error:
            await self._fail(turn, error)
        except Exception as error:
            turn.fail(EngineFailed(f"{self._dialect.name}: {error!r}"))

    async def _chunks(
        self, request: EngineRequest, ids: list[int], call: Call
    ) -> AsyncGenerator[Chunk, None]:
        """Yields the chunks of an answer, and ends the turn on the server where they are not read
        to the end.

        A server that is busy is asked again for `BUSY_S`: it refuses by a status, or in place of
        the first chunk.
        """
        end = asyncio.get_running_loop().time() + BUSY_S
        has_begun = False
        while True:
            reader = self._dialect.reader(request, call)
            try:
                async with aclosing(self._http.events(call.path, call.body)) as events:
                    async for data in events:
                        chunk = reader.read(data)
                        has_begun = True
                        yield chunk
                return
            except Refused as refusal:
                if refusal.status == 404 and request.adapter:  # it was unloaded a moment ago
                    raise NotFound(f"model: {request.adapter}") from refusal
                is_over = has_begun or asyncio.get_running_loop().time() > end
                if is_over or refusal.status not in _BUSY:
                    raise
            except Unreachable:
                raise
            except BaseException:
                self._abort(call)
                raise
            await asyncio.sleep(RETRY_S)
            # SGLang aborts the id of an answer that has ended once more, two seconds later.
            call = self._dialect.generate(request, ids, self._server, self._model)

    async def _fail(self, turn: EngineTurn, error: TurnwireError) -> None:
        """Ends a turn. If the error may be that of a server that dies, the engine looks first: a
        turn that is to go on must not be sent to a server that is dead."""
        if isinstance(error, EngineDied):
            await self._find_out(error)
        turn.fail(error)

    def _refusal(self, refusal: Refused) -> TurnwireError:
        """The error of a turn that the server refused. One that it may take later, or that another
        server may take, can be continued."""
        if refusal.status in (400, 404, 413, 422):
            return Invalid(f"the inference server refused the request: {refusal}")
        if refusal.status in _BUSY or refusal.status >= 500:
            return EngineDied(f"{self._http.url} refused the turn: {refusal}")
        return EngineFailed(f"{self._http.url} refused the turn: {refusal}")

    def _abort(self, call: Call) -> None:
        """Ends a turn on the server, also where something in between keeps its connection."""
        abort = self._dialect.abort(call)
        if abort is not None and not self._turns.over:
            self._spawn(self._post(abort))

    async def _post(self, call: Call) -> None:
        with suppress(Unreachable, Refused):
            await self._http.post(call.path, call.body)

    async def _watch_server(self) -> None:
        """Ends the engine when its server is gone, hangs or was started again."""
        silent = 0
        while not self._turns.over:
            self._has_heard = False
            await asyncio.sleep(PULSE_S)
            try:
                pulse = await self._ask_pulse()
            except (Unreachable, Refused) as error:
                # A server that drains refuses connections, and one under load is slow.
                silent = 0 if self._has_heard else silent + 1
                if silent == SILENT_PULSES:
                    self._turns.die(f"{self._http.url} does not answer: {error}")
                continue
            silent = 0
            self._note(pulse)

    async def _find_out(self, reason: EngineDied) -> None:
        """Declares the engine dead if the server does not answer, or is another one."""
        try:
            self._note(await self._ask_pulse())
        except (Unreachable, Refused):
            self._turns.die(f"{self._http.url} is gone: {reason}")

    def _note(self, pulse: Pulse) -> None:
        if pulse.started != self._pulse.started or pulse.steps < self._pulse.steps:
            self._turns.die(f"{self._http.url} was started again")
        if pulse.steps != self._pulse.steps:
            self._turns.stepped()  # also in a long prefill, which sends nothing
        self._pulse = pulse

    async def _ask_pulse(self) -> Pulse:
        try:
            async with asyncio.timeout(PULSE_LIMIT_S):
                return await self._dialect.pulse(self._http)
        except TimeoutError as error:
            raise Unreachable("no answer in time") from error
        except ValueError as error:
            raise Unreachable(f"its answer cannot be read: {error}") from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _no_start(http: ServerHttp, error: Refused | Unreachable) -> EngineFailed:
    """The error of an engine that cannot start."""
    if isinstance(error, Unreachable):
        return EngineFailed(f"no inference server answers at {http.url}: {error}")
    if error.status == 401:
        return EngineFailed(f"{http.url} refuses the key of --engine-api-key-file: {error}")
    return EngineFailed(f"{http.url} is another kind of server, or refuses to serve: {error}")


def _url(config: WorkerConfig) -> str:
    if len(config.engine_urls) != 1:
        raise Invalid("name one inference server with --engine-url", param="engine_url")
    return config.engine_urls[0]


def _api_key(config: WorkerConfig) -> str | None:
    file = config.engine_api_key_file
    return None if file is None else read_secret(file)
