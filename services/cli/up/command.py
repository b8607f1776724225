"""`turnwire up`: runs the whole pipeline on one machine until Ctrl-C."""

import asyncio
import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from schemas.errors import TurnwireError
from services.cli.check.model import CONNECT_S, require_model
from services.cli.common import CommandError, reachable_host, reserve_ports
from services.cli.instances import Instance, announce, program, write_ready_file
from services.cli.registry import COMMON_SETTINGS, Command
from services.cli.signals import run
from services.cli.up.embedded_nats import NAME as NATS
from services.cli.up.embedded_nats import EmbeddedNats
from services.cli.up.plan import ModelPlan, UpPlan, make_plan, prepare_state
from services.cli.up.readiness import answers, context_window, readiness_problem
from services.cli.up.screen import Screen, ServedModelNotes, instructions
from services.cli.up.specs import INSPECTOR, inner_processes, inspector_spec, make_specs
from services.cli.up.supervisor import ChildFailed, Supervisor
from services.runtime.config.command_line import CLEAN, FAILURE, INTERRUPTED
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import Sources
from services.runtime.config.masking import mask_passwords
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.tables import UpConfig

if TYPE_CHECKING:
    from services.cli.up.process_ends import ProcessEnds

POLL_S = 0.05
HEARTBEAT_S = 5.0
"""How long `up` waits for a worker's heartbeat, which has the context window."""
NATS_START_S = 15.0
BUCKETS_S = 5.0
"""Interval at which lost buckets are made again."""
STOP_ORDER = (INSPECTOR, "frontend", "preprocessor", "worker", "parser", NATS)
"""Upstream stages first: turns in progress still need the later ones."""


class UpInterrupted(Exception):
    """A signal ended the command."""


def up(sources: Sources, /) -> int:
    """Starts everything on this machine and prints how to use it. A flag reaches every stage that
    has it."""
    plan = make_plan(sources)
    remove_ready_file(plan)
    running = _UpRun(plan)
    running.prepare()
    try:
        return asyncio.run(running.run())
    finally:
        remove_ready_file(plan)


COMMAND = Command(
    up,
    (UpConfig, FrontendConfig, WorkerConfig, PreprocessorConfig, ParserConfig, BusConfig),
    without=("id", "log_format"),
    essential=(
        *COMMON_SETTINGS,
        "models",
        "workers",
        "state_dir",
        "metrics_port",
        "inspect",
        "demo_vision",
        "slots",
        "device",
        "log_level",
    ),
)


class _UpRun:
    def __init__(self, plan: UpPlan) -> None:
        self._plan = plan
        self._started = time.monotonic()
        self._ports = reserve_ports(plan.frontend.host, plan.frontend.port, plan.up.frontends)
        self._tools = True
        self._metrics = 0
        """The port of the metrics of all processes; 0: they are not served."""
        self._stage_metrics: list[int] = []
        """The ports of those of `inner_processes`."""
        if plan.up.metrics_port is not None:
            host = plan.up.metrics_host
            (self._metrics,) = reserve_ports(
                host, plan.up.metrics_port, 1, flags=("--metrics-host", "--metrics-port")
            )
            self._stage_metrics = reserve_ports("127.0.0.1", 0, len(inner_processes(plan)))
        self._inspector = 0
        """The port of the inspector; 0: it is not served."""
        if plan.up.inspect:
            (self._inspector,) = reserve_ports(
                "127.0.0.1", plan.up.inspect_port, 1, flags=("--host", "--inspect-port")
            )
        self._screen = Screen(plan.frontend.log_level)
        self._supervisor = Supervisor(self._screen)
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._nats: EmbeddedNats | None = None  # holds the lock of the state directory

    def prepare(self) -> None:
        """Connects to the bus, makes the files that the processes need, and tries the model. Raises
        OSError or CommandError.

        Blocks, so that Ctrl-C ends it at once.
        """
        if not self._plan.embedded_nats:
            run(self._require_bus())
        what = "preparing the demo model" if self._plan.demo else "trying the model"
        with self._screen.progress(what):
            prepare_state(self._plan)
            self._require_models()

    def _require_models(self) -> None:
        """Tries the models, and goes on without those that cannot be loaded. Raises CommandError if
        none can."""
        works: list[ModelPlan] = []
        for model in self._plan.models:
            flags = chain(self._plan.frontend_flags, *model.flags.values())
            try:
                tools = require_model(dict.fromkeys(flags))
            except CommandError as error:
                if len(self._plan.models) == 1:
                    raise
                self._screen.report(f"{model.name} is not served: {error}", "error")
                continue
            if not works:
                self._tools = tools
            works.append(model)
        if not works:
            raise CommandError("no model can be served")
        self._plan = structs.replace(self._plan, models=works)

    async def run(self) -> int:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self._on_signal)
        status = CLEAN
        with tempfile.TemporaryDirectory(prefix="turnwire-") as directory:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._serve(Path(directory), tasks))
                    tasks.create_task(self._supervisor.raise_on_failure())
                    tasks.create_task(self._interrupted())
            except* UpInterrupted:
                pass
            except* (ChildFailed, OSError) as errors:
                self._screen.report(str(errors.exceptions[0]), "error")
                status = FAILURE
            finally:
                await self._end(drain=status == CLEAN)
        if self._kill.is_set():
            return FAILURE
        is_interrupted = status == CLEAN and not self._supervisor.ready
        return INTERRUPTED if is_interrupted else status

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    async def _interrupted(self) -> None:
        await self._stop.wait()
        raise UpInterrupted

    async def _serve(self, directory: Path, tasks: asyncio.TaskGroup) -> None:
        plan = self._plan
        nats_url = await self._start_processes(directory)
        metrics_url = self._serve_metrics()
        if nats_url is not None:
            made = asyncio.Event()
            tasks.create_task(self._keep_buckets(nats_url, made))
            await made.wait()  # the stages, which are starting, need none before the first turn
            tasks.create_task(self._keep_store(nats_url))
        ends = self._process_ends(nats_url)
        tasks.create_task(ends.follow())
        bus_url = nats_url or plan.frontend.bus.nats_url
        if self._inspector:
            await self._supervisor.start(inspector_spec(plan, bus_url, self._inspector))

        urls = [plan.url(port) for port in self._ports]
        await self._wait_until_ready(urls)
        window = await self._context_window(urls[0], ends)
        inspector_url = await self._inspector_address()
        self._supervisor.ready = True
        instance = Instance(
            url=urls[0],
            urls=urls,
            model=plan.model,
            pid=os.getpid(),
            nats_url=bus_url,
            model_dir=plan.worker.model,
            models=[model.name for model in plan.models],
            own_bus=plan.embedded_nats,
            model_dirs={model.name: model.worker.model for model in plan.models},
            state_dir=str(plan.state_dir.absolute()),
        )
        if plan.up.ready_file:
            write_ready_file(Path(plan.up.ready_file), instance)
        model = ServedModelNotes(window, self._tools)
        with announce(instance, os.environ):
            seconds = time.monotonic() - self._started
            text = instructions(
                plan,
                urls,
                model,
                seconds,
                program(),
                other_urls=plan.other_urls(self._ports[0]),
                metrics_url=metrics_url,
                inspector_url=inspector_url,
            )
            print(text, flush=True)
            await asyncio.Event().wait()

    async def _start_processes(self, directory: Path) -> str | None:
        """Starts nats-server, if it is embedded, then all stages. Returns its URL; None: the stages
        use another server."""
        plan = self._plan
        nats_url = None
        if plan.embedded_nats:
            (nats_port,) = reserve_ports("127.0.0.1", 0, 1)
            self._nats = EmbeddedNats(directory, plan.state_dir, nats_port)
            nats_url = self._nats.url
            await self._supervisor.start(self._nats.spec)
        for spec in make_specs(plan, nats_url, self._ports, os.environ, self._stage_metrics):
            await self._supervisor.start(spec)
        return nats_url

    def _serve_metrics(self) -> str:
        """Serves the metrics of all processes, if that is set; returns the address, or ""."""
        if not self._metrics:
            return ""
        from services.cli.up.metrics import serve_metrics  # takes 0.1 s

        plan = self._plan
        host = plan.up.metrics_host
        urls = {
            f"frontend-{number}": f"{plan.url(port)}/metrics"
            for number, port in enumerate(self._ports, 1)
        }
        inner = zip(inner_processes(plan), self._stage_metrics, strict=False)
        urls |= {name: f"http://127.0.0.1:{port}/metrics" for name, port in inner}
        serve_metrics(host, self._metrics, urls)
        return f"http://{reachable_host(host)}:{self._metrics}/metrics"

    async def _keep_buckets(self, nats_url: str, made: asyncio.Event) -> None:
        """Makes the buckets, sets `made`, and makes them again when the server has lost them."""
        # Takes 0.1 s, while the stages start.
        from services.cli.commands.make_buckets import keep_buckets, make_buckets

        buckets = self._plan.buckets
        bus = dataclasses.replace(buckets.bus, nats_url=nats_url, connect_timeout_s=NATS_START_S)
        config = dataclasses.replace(buckets, bus=bus, bucket_replicas=1)  # there is one server
        try:
            await make_buckets(config)
        except TurnwireError as error:
            text = f"turns are kept in memory only: {error.info.message}"
            self._screen.report(text, "error")
        made.set()
        # Without a server nothing runs, and its supervisor reports that.
        with suppress(TurnwireError):
            await keep_buckets(config, BUCKETS_S)

    async def _keep_store(self, nats_url: str) -> None:
        """Starts nats-server again where it stores nothing any more, after a full disk."""
        from services.cli.up.store_keeper import keep_store

        assert self._nats is not None
        bus = dataclasses.replace(self._plan.frontend.bus, nats_url=nats_url)
        with suppress(TurnwireError):
            await keep_store(bus, self._nats.store, NATS, self._supervisor, self._screen)

    def _process_ends(self, nats_url: str | None) -> "ProcessEnds":
        """What announces to the other processes at once that one has ended."""
        from services.cli.up.process_ends import ProcessEnds  # takes 0.1 s

        bus = self._plan.frontend.bus
        if nats_url is not None:
            bus = dataclasses.replace(bus, nats_url=nats_url)
        ends = ProcessEnds(bus)
        self._supervisor.on_end.append(ends.announce)
        return ends

    async def _require_bus(self) -> None:
        """Raises CommandError if the bus cannot be reached: one error instead of one from each
        process."""
        # Takes 0.1 s, and is not needed with an embedded server.
        from services.cli.observer import observing

        bus = dataclasses.replace(self._plan.frontend.bus, connect_timeout_s=CONNECT_S)
        try:
            async with observing(bus, "up", user="frontend"):
                pass
        except TurnwireError as error:
            raise CommandError(f"{mask_passwords(error)} (--nats-url)") from error

    async def _wait_until_ready(self, urls: Sequence[str]) -> None:
        """Waits until all frontends are ready."""
        with self._screen.progress("starting") as progress:
            for url in urls:
                while True:
                    models = [
                        model.name
                        for model in self._plan.models
                        if model.label not in self._supervisor.failed
                    ]
                    reason = await asyncio.to_thread(readiness_problem, url, models)
                    if reason is None:
                        break
                    progress.update(reason)
                    await asyncio.sleep(POLL_S)

    async def _context_window(self, url: str, ends: "ProcessEnds") -> int:
        """The first model's context window in tokens; 0: unknown."""
        if self._plan.frontend.api_keys_file:  # the request would be refused, logged and counted
            return await ends.window(self._plan.model, HEARTBEAT_S)
        return await asyncio.to_thread(context_window, url, self._plan.model)

    async def _inspector_address(self) -> str:
        """Waits until the inspector listens on the bus; it then has the first turn, too. Returns
        its address, or "" if it is not served."""
        if not self._inspector:
            return ""
        url = f"http://127.0.0.1:{self._inspector}/"
        while True:
            if await asyncio.to_thread(answers, url):
                return url
            await asyncio.sleep(POLL_S)

    async def _end(self, drain: bool) -> None:
        if drain:
            if self._supervisor.ready:
                self._screen.report(
                    "ending when the turns in progress have finished; a second Ctrl-C ends at once"
                )
            draining = asyncio.ensure_future(self._drain())
            killed = asyncio.ensure_future(self._kill.wait())
            await asyncio.wait({draining, killed}, return_when=asyncio.FIRST_COMPLETED)
            for task in (draining, killed):
                task.cancel()
            await asyncio.gather(draining, killed, return_exceptions=True)
        await self._supervisor.kill()

    async def _drain(self) -> None:
        names = self._supervisor.names
        for kind in STOP_ORDER:
            await self._supervisor.stop([name for name in names if name.partition("-")[0] == kind])


def remove_ready_file(plan: UpPlan) -> None:
    """Removes the ready file, also that of an earlier run."""
    if plan.up.ready_file:
        Path(plan.up.ready_file).unlink(missing_ok=True)
