"""Virtual time for a pipeline in the loop of a test: the loop, the network and the nats-server of
`simulation`.

Time passes only when nothing is left to do, and then at once, up to the next timer. So a test may
wait for seconds that cost nothing, and a busy machine changes nothing. There are no threads: work
for an executor runs where it is submitted.
"""

import asyncio
from random import Random
from typing import Any

from typing_extensions import override

from simulation.loop import Machine, SimLoop
from simulation.nats_server import Cluster, Server
from simulation.network import Network


class VirtualLoop(SimLoop):
    """A loop of `simulation` that `asyncio.Runner` can run."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.errors: list[dict[str, Any]] = []
        """Exceptions that nobody has handled."""
        Network(self)
        asyncio.events._set_running_loop(None)  # it runs when its runner says so

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)
        super().call_exception_handler(context)

    def _run_once(self) -> None:
        if not self._run_turn():
            raise RuntimeError("every task waits for something that never comes")


class SimulatedNats:
    """A nats-server of `simulation`, which a test may stop, kill and start again."""

    url = "nats://nats:4222"

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._cluster = Cluster(loop)
        self._server: Server | None = None

    @property
    def _running(self) -> Server:
        assert self._server is not None, "it does not run"
        return self._server

    def start(self) -> None:
        machine = Machine("nats")
        self._server = Server(self._cluster, machine, "nats", 4222)
        self._loop.create_task(self._server.start(), context=machine.context)

    def kill(self) -> None:
        server, self._server = self._running, None
        server.stopped()
        self._loop.kill(server.machine)
        self._loop.network.lost(server.machine)

    def pause(self) -> None:
        """Stops reading and writing until `resume`."""
        self._running.machine.frozen = True

    def resume(self) -> None:
        self._loop.resume(self._running.machine)
