"""A simulated deployment: NATS servers, and any number of each service, as processes that can be
killed or frozen.

The services' code is the real one, from `run(config)` on; nats-py and aiohttp are real, too. What
is replaced is the event loop with its network (`loop`, `network`), clocks and randomness
(`interpreter`), and nats-server (`nats_server`). A model is loaded once for all processes.
"""

import asyncio
import gc
import hashlib
import json
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TextIO

from cachetools import cached
from tokenizers import Tokenizer

from schemas import subjects
from schemas.control import INNER_STAGES
from services.cli.commands.make_buckets import keep_buckets, make_buckets
from services.frontend import service as frontend_service
from services.ledger.turn_ledger import TurnLedger
from services.parser import event_outbox as parser_outbox
from services.parser import service as parser_service
from services.preprocessor import service as preprocessor_service
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.base import MIB
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.stores import BucketsConfig
from services.runtime.observability import telemetry
from services.runtime.presence.heartbeats import Service
from services.runtime.process import Process
from services.runtime.streams.frames import FRAME_BYTES
from services.tokenization.detokenizer import Vocabulary
from services.worker import service as worker_service
from services.worker.engine import Engine
from services.worker.output import token_output as worker_output
from simulation import interpreter
from simulation.engine import SimEngine
from simulation.loop import Machine, SimLoop, running_machine
from simulation.nats_server import Cluster, Server
from simulation.network import Network
from simulation.result import Line
from simulation.server_engine import ServerEngine
from turnwire_tools.script import engine as script_engine

STAGES: tuple[str, ...] = (*INNER_STAGES, "frontend")
FIRST_PORT = 8000
WINDOW = 8192
"""Tokens of a prompt and its answer: some three times the longest prompt of a session."""
TRACE_LINES = 4000
_LEFT_OUT = frozenset({"time", "level", "event", "stage", "process", "evidence"})
"""Fields of log lines that a line of the trace has in another place, or that are long."""


@dataclass
class Running:
    """A process of the deployment."""

    machine: Machine
    stage: str
    task: "asyncio.Task[None]"
    port: int = 0
    """Where a frontend listens."""
    process: Process | None = None
    """Known as soon as the process serves."""
    service: Any = None
    engine: SimEngine | None = None
    """The engine of a worker."""
    server_engine: ServerEngine | None = None
    """The engine of a worker that decodes on a server, which is `engine`."""
    failure: BaseException | None = None
    is_terminated: bool = False
    """It has got SIGTERM, and handles it."""


class World:
    """One simulation."""

    def __init__(
        self,
        seed: int,
        model: Path,
        *,
        servers: int = 1,
        recovery_s: float = 90.0,
        window_bytes: int = MIB,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        over_servers: bool = False,
        keep_trace: bool = False,
    ) -> None:
        """`settings`: those of the processes of a stage; `over_servers`: workers decode on
        servers."""
        self.seed = seed
        self.random = Random(seed)
        self.loop = SimLoop(Random(self.random.random()))
        self.network = Network(self.loop)
        self.cluster = Cluster(self.loop)
        self.model = str(model)
        self.recovery_s = recovery_s
        self.window_bytes = window_bytes
        self._settings = settings or {}
        self._over_servers = over_servers
        self.running: dict[str, Running] = {}
        self.servers: dict[str, Server] = {}
        self.prompts: list[tuple[float, list[int]]] = []
        """When an engine began a turn, and its prompt."""
        self.errors: list[str] = []
        """What was logged as an error, and exceptions that nobody handled."""
        self.trace: deque[Line] = deque(maxlen=None if keep_trace else TRACE_LINES)
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers: dict[str, int] = {}
        self._others = 0
        self._frozen_until: dict[Machine, float] = {}
        self._server_names = [f"nats{number}" for number in range(1, servers + 1)]
        self.loop.world = self
        # As large a part of the window as by default.
        for module in (worker_output, parser_outbox):
            _replace(module, FRAME_BYTES=FRAME_BYTES * window_bytes // MIB)
        interpreter.begin(self.loop, seed, self._logged)
        self.loop.set_exception_handler(self._unhandled)

    # -- the trace

    def note(self, name: str, text: str) -> None:
        """Adds a line to the trace."""
        line = (round(self.loop.now, 6), name, text)
        self.trace.append(line)
        self._digest.update(repr(line).encode())

    @property
    def digest(self) -> str:
        """The hash of the whole trace."""
        return self._digest.hexdigest()

    def _logged(self, name: str, text: str) -> None:
        for line in text.replace(self.model, "MODEL").splitlines():
            shown = _readable(line)
            self.note(name, shown)
            if shown.startswith("error: ") or "Traceback" in line:
                self.errors.append(f"{name}: {shown}")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        machine = running_machine()
        name = machine.name if machine else "?"
        text = f"unhandled: {context.get('message')} {context.get('exception')!r}"
        self.note(name, text)
        self.errors.append(f"{name}: {text}")

    async def _keep_buckets(self) -> None:
        config = BucketsConfig(bus=self.bus, every_s=5.0, bucket_replicas=len(self._server_names))
        await make_buckets(config)
        await keep_buckets(config, 5.0)

    # -- processes

    @property
    def bus(self) -> BusConfig:
        """The settings of the bus for all processes."""
        urls = ",".join(f"nats://{name}:4222" for name in self._server_names)
        return BusConfig(nats_url=urls, recovery_s=self.recovery_s, window_bytes=self.window_bytes)

    def begin(self, counts: Mapping[str, int]) -> None:
        """Starts the servers, the buckets' keeper, and processes of each stage."""
        for name in self._server_names:
            self.start_server(name)
        self.spawn("buckets", "buckets", self._keep_buckets())
        for stage, count in counts.items():
            for _ in range(count):
                self.start(stage)

    def start_server(self, name: str) -> Server:
        """Starts a NATS server. Its streams are those that the cluster has kept."""
        machine = Machine(name)
        server = self.servers[name] = Server(self.cluster, machine, name, 4222)
        self.loop.create_task(server.start(), context=machine.context)
        self.note(name, "starts")
        return server

    def start(self, stage: str, *, port: int = 0, **settings: Any) -> Running:
        """Starts another process of a stage. A frontend listens on `port`, or else on a new one."""
        number = self._numbers[stage] = self._numbers.get(stage, 0) + 1
        name = f"{stage}{number}"
        if stage == "frontend":
            port = port or FIRST_PORT + number
            settings = {"response_store": "shared", "port": port, "host": "127.0.0.1"} | settings
        return self.spawn(name, stage, self._serve(stage, name, settings), port=port)

    def start_other(self, stage: str) -> Running:
        """Starts a process that speaks another protocol."""
        self._others += 1
        name = f"other-{stage}{self._others}"
        port = FIRST_PORT + 1000 + self._others
        settings = {"port": port} if stage == "frontend" else {}
        running = self.spawn(name, f"other {stage}", self._serve(stage, name, settings))
        running.machine.prefix = "tw.v1"
        return running

    def spawn(
        self, name: str, stage: str, work: Coroutine[Any, Any, None], *, port: int = 0
    ) -> Running:
        """Runs a coroutine as a process of its own."""
        machine = Machine(name)
        self.note(name, "starts")
        task = self.loop.create_task(self._guarded(name, work), context=machine.context)
        running = self.running[name] = Running(machine, stage, task, port)
        return running

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self.note(name, "ends")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.note(name, f"ends with {error!r}")
            self.running[name].failure = error
        finally:
            self._exited(self.running[name])

    def _exited(self, running: Running) -> None:
        machine = running.machine
        if machine.alive:
            self.loop.call_soon(self._buried, running, context=self.loop.system.context)

    def _buried(self, running: Running) -> None:
        if running.machine.alive:
            self.loop.kill(running.machine)
            self.network.lost(running.machine)
        self.running.pop(running.machine.name, None)

    def _serve(self, stage: str, name: str, settings: dict[str, Any]) -> Coroutine[Any, Any, None]:
        common: dict[str, Any] = {"bus": self.bus, "id": name, "log_format": "json"}
        model = {"model": self.model, "served_model_name": "m"}
        settings = {**self._settings.get(stage, {}), **settings}
        if stage == "frontend":
            return frontend_service.run(FrontendConfig(**common | settings))
        if stage == "preprocessor":
            window = {"max_model_len": WINDOW}
            return preprocessor_service.run(
                PreprocessorConfig(**common | model | window | settings)
            )
        if stage == "parser":
            return parser_service.run(ParserConfig(**common | model | settings))
        return worker_service.run(
            WorkerConfig(**common | model | {"script_mode": "request"} | settings)
        )

    def served(self, process: Process, service: Any) -> None:
        """Notes the `Process` and the service of the simulated process that runs now."""
        machine = running_machine()
        assert machine is not None
        if (running := self.running.get(machine.name)) is not None:
            running.process, running.service = process, service

    def open_engine(self, config: WorkerConfig) -> Engine:
        """Makes the engine of the simulated worker that runs now."""
        machine = running_machine()
        assert machine is not None
        running = self.running[machine.name]
        running.engine = SimEngine(config, lambda ids: self.prompts.append((self.loop.now, [*ids])))
        if not self._over_servers:
            return running.engine
        random = Random(f"lies {self.seed} {machine.name}")
        running.server_engine = ServerEngine(running.engine, random)
        return running.server_engine

    # -- faults

    def kill(self, name: str, *, silently: bool = False) -> None:
        """Kills a process; `silently`: with its machine, so that its peers notice nothing."""
        self.note(name, "is killed" + (" with its machine" if silently else ""))
        server = self.servers.pop(name, None)
        machine = server.machine if server is not None else self.running.pop(name).machine
        if server is not None:
            server.stopped()
        self.loop.kill(machine)
        self.network.lost(machine, silently=silently)

    def terminate(self, name: str) -> None:
        """Sends SIGTERM, once: a second one cuts the drain short, and starts a real timer that
        would end this interpreter."""
        running = self.running[name]
        if running.is_terminated:
            return
        running.is_terminated = signal.SIGTERM in running.machine.signals
        self.note(name, "gets SIGTERM")
        self.loop.signal(running.machine, signal.SIGTERM)

    def machine(self, name: str) -> Machine | None:
        """The machine of a living process."""
        if name in self.servers:
            return self.servers[name].machine
        running = self.running.get(name)
        return running.machine if running is not None else None

    def freeze(self, name: str, seconds: float) -> None:
        """Stops a process for a time, as SIGSTOP does."""
        machine = self.machine(name)
        if machine is None:
            return
        self.note(name, f"is frozen for {seconds:.3f} s")
        machine.frozen = True
        until = self._frozen_until[machine] = max(
            self.loop.now + seconds, self._frozen_until.get(machine, 0.0)
        )
        self.loop.call_at(until, self._thaw, machine, context=self.loop.system.context)

    def _thaw(self, machine: Machine) -> None:
        if machine.alive and machine.frozen and self.loop.now >= self._frozen_until[machine]:
            self.loop.resume(machine)
            self.note(machine.name, "goes on")

    @property
    def ready(self) -> bool:
        """Whether every process accepts work."""
        return all(self.is_ready(running) for running in self.running.values())

    def is_ready(self, running: Running) -> bool:
        """Whether a process accepts work."""
        if running.stage == "buckets":
            return True
        process = running.process
        if process is None or process.draining or process.cut_off or running.machine.frozen:
            return False
        return not running.port or ("127.0.0.1", running.port) in self.network.listeners

    # -- running

    def run(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Runs until `done`, at most `limit_s` of virtual time from now. Returns whether it was
        done."""
        return self.loop.run_until(done, self.loop.now + limit_s)

    def close(self) -> None:
        """Ends the simulation; nothing of it runs any more."""
        interpreter.end()
        self.loop.end()
        self.running.clear()
        gc.collect()


@cache
def tokenizer(model: str) -> Tokenizer:
    """Loads a model's tokenizer, once."""
    return Tokenizer.from_file(str(Path(model) / "tokenizer.json"))


class _Prefix(str):
    """The first words of all subjects, which are others for a process of another protocol."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        machine = running_machine()
        return machine.prefix if machine is not None and machine.prefix else str(self)


def _readable(line: str) -> str:
    """A log line for the trace: `[LEVEL: ]EVENT FIELD=VALUE …`."""
    try:
        fields = json.loads(line)
        level = "" if fields["level"] == "info" else f"{fields['level']}: "
    except ValueError:
        return line
    shown = (
        f" {key}={value}"
        for key, value in fields.items()
        if key not in _LEFT_OUT and value is not None
    )
    return f"{level}{fields['event']}{''.join(shown)}"


class _LineWriter:
    """Writes each log line at once, because there is no pipe with a reader that could be woken too
    often."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def info(self, line: str) -> None:
        self._stream.write(line + "\n")

    debug = msg = warning = error = critical = exception = fatal = warn = info


def prepare() -> None:
    """Makes the services ready to be simulated, once for the interpreter: models are loaded once,
    the garbage collector is left alone, and a world learns of each `Process` and each prompt."""
    for module in (frontend_service, preprocessor_service, parser_service, worker_service):
        _replace(module, relax_gc_and_trim_heap=lambda: None)
    load_setup = cached(cache={}, key=lambda config: config.model)(ModelSetup.load)
    _replace(ModelSetup, load=staticmethod(load_setup))
    load_tokenizer = cached(cache={}, key=str)(Tokenizer.from_file)
    _replace(script_engine, Tokenizer=SimpleNamespace(from_file=load_tokenizer))
    vocabulary = cached(cache={}, key=id)(Vocabulary)
    _replace(
        parser_service, load_backend=lambda model, **_: tokenizer(model), Vocabulary=vocabulary
    )
    ledger_model = cached(cache={}, key=id)(
        lambda setup: open_ledger(setup, entry_bytes=1, prompt_bytes=1).model
    )
    _replace(
        preprocessor_service,
        open_ledger=lambda setup, **room: TurnLedger(ledger_model(setup), **room),
    )
    _replace(telemetry, LineWriter=_LineWriter)
    _replace(subjects, PREFIX=_Prefix(subjects.PREFIX))
    _replace(worker_service, open_engine=lambda _, config: _world().open_engine(config))
    serve = Process.serve

    def served(process: Process, service: Service) -> None:
        serve(process, service)
        _world().served(process, service)

    _replace(Process, serve=served)
    gc.collect()
    gc.freeze()
    gc.disable()


def _world() -> World:
    """The simulation that runs now."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    world: World = loop.world
    return world


def _replace(owner: object, **members: object) -> None:
    """Replaces members of a module or a class."""
    for name, member in members.items():
        setattr(owner, name, member)
