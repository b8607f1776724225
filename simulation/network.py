"""TCP connections between simulated processes: in order, with delays, back-pressure, partitions and resets.

The bytes of a connection are never lost or reordered while it lives. Those that a partition holds back arrive when it
ends, as TCP sends them again. A process that is killed resets its connections, unless its machine is lost: then its
peers notice nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation.loop import Machine, SimLoop, running_machine

RECEIVE_BYTES = 256 * 1024
"""What the receiver's kernel takes from the sender before anyone reads."""
HIGH_WATER_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
DELAY_S = (20e-6, 300e-6)


class _Socket:
    """What `get_extra_info("socket")` returns: it accepts options, and knows its address."""

    family = 2
    type = 1
    proto = 6

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self._address


class _Server:
    """What `create_server` returns."""

    def __init__(self, network: "Network", address: tuple[str, int]) -> None:
        self._network = network
        self._address = address
        self.sockets = [_Socket(address)]

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return self._address in self._network.listeners


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", machine: Machine, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__({"socket": _Socket(local), "sockname": local, "peername": remote})
        self.network = network
        self.machine = machine
        self.peer: Transport
        self.protocol: Any = None
        self._out: deque[bytes] = deque()
        """Written, not yet taken by the receiver's kernel."""
        self._out_bytes = 0
        self._in: deque[bytes] = deque()
        """Arrived, not yet read."""
        self._in_bytes = 0
        self._on_the_way = 0
        self._arrives = 0.0
        """When the last bytes sent arrive at the peer."""
        self._high = HIGH_WATER_BYTES
        self._paused_writing = False
        self._paused_reading = False
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._eof_in = False
        self._reading = False

    # -- asyncio.Transport --------------------------------------------------------------------------------------------

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._push()
        if self._out_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_sent = True
        self._push()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._push()

    def abort(self) -> None:
        self._closing = True
        self._end(None)
        self.network.later(self, self.peer._reset)

    # -- the kernels --------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        """Sends what the peer's kernel takes."""
        peer = self.peer
        while self._out and peer._in_bytes + self._on_the_way < RECEIVE_BYTES:
            data = self._out.popleft()
            self._out_bytes -= len(data)
            self._on_the_way += len(data)
            self.network.later(self, lambda data=data: self._arrived(data))
        if not self._out and self._closing and not self._lost and self.machine.alive:
            self.network.later(self, peer._eof)
            self.network.loop.call_soon(self._end, None, context=self.machine.context)
        elif not self._out and self._eof_sent:
            self.network.later(self, peer._eof)
        if self._paused_writing and self._out_bytes <= self._high // 4:
            self._paused_writing = False
            self.network.loop.call_soon(self._resume_writing, context=self.machine.context)

    def _resume_writing(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()

    def _arrived(self, data: bytes) -> None:
        peer = self.peer
        self._on_the_way -= len(data)
        if peer._lost or not peer.machine.alive:
            return
        peer._in.append(data)
        peer._in_bytes += len(data)
        peer._read_soon()

    def _read_soon(self) -> None:
        if not self._reading and (self._in or self._eof_in) and not self._paused_reading and not self._lost:
            self._reading = True
            self.network.loop.call_soon(self._read, context=self.machine.context)

    def _read(self) -> None:
        self._reading = False
        if self._paused_reading or self._lost:
            return
        if self._in and not self._closing:
            data = b"".join(self._in)
            self._in.clear()
            self._in_bytes = 0
            self.network.loop.call_soon(self.peer._push, context=self.network.loop.system.context)
            self.protocol.data_received(data)
            if self._eof_in:
                self._read_soon()
        elif self._eof_in and not self._closing:
            if not self.protocol.eof_received():
                self.close()

    def _eof(self) -> None:
        if not self._lost and self.machine.alive and not self._eof_in:
            self._eof_in = True
            self._read_soon()

    def _reset(self) -> None:
        if not self._lost and self.machine.alive:
            self.network.loop.call_soon(self._end, ConnectionResetError(104, "reset by peer"), context=self.machine.context)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._out.clear()
        self._out_bytes = 0
        self._in.clear()
        self.network.open.pop(self, None)
        if self.machine.alive and self.protocol is not None:
            self.network.loop.call_soon(self.protocol.connection_lost, error, context=self.machine.context)


class Network:
    """All connections and listeners."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        loop.network = self
        self.listeners: dict[tuple[str, int], tuple[Machine, Callable[[], Any]]] = {}
        self.open: dict[Transport, None] = {}
        self.cut: set[frozenset[str]] = set()
        """Pairs of processes that do not reach each other; `frozenset((name,))`: one process reaches nobody."""
        self._held: list[tuple[Transport, Callable[[], None]]] = []
        self._port = 40_000
        self.slow: dict[str, float] = {}
        """Additional delay of a process's bytes, in seconds."""

    def listen(self, factory: Any, host: Any, port: Any) -> _Server:
        """Listens at an address. Raises OSError if it is taken."""
        machine = running_machine() or self.loop.system
        if not port:
            self._port += 1
            port = self._port
        address = (str(host), int(port))
        if address in self.listeners:
            raise OSError(98, "address already in use")
        self.listeners[address] = machine, factory
        return _Server(self, address)

    async def connect(self, factory: Any, host: Any, port: Any) -> tuple[Transport, Any]:
        """Connects to an address. Raises ConnectionRefusedError if nobody listens there."""
        machine = running_machine() or self.loop.system
        await asyncio.sleep(self._delay(machine))
        address = (str(host), int(port))
        listener = self.listeners.get(address)
        while listener is not None and self._is_cut(machine, listener[0]):
            await asyncio.sleep(1.0)  # SYN is sent again
            listener = self.listeners.get(address)
        if listener is None or not listener[0].alive:
            raise ConnectionRefusedError(111, f"connect call failed {address}")
        server, make = listener
        self._port += 1
        local = (f"10.0.0.{1 + self._port % 250}", self._port)
        near, far = Transport(self, machine, local, address), Transport(self, server, address, local)
        near.peer, far.peer = far, near
        near.protocol = factory()
        self.open[near] = self.open[far] = None

        def accept() -> None:
            far.protocol = make()
            far.protocol.connection_made(far)
            far._read_soon()

        self.loop.call_soon(accept, context=server.context)
        near.protocol.connection_made(near)
        return near, near.protocol

    def later(self, sender: Transport, arrive: Callable[[], None]) -> None:
        """Lets something arrive at the sender's peer, after all that was sent before it."""
        if self._is_cut(sender.machine, sender.peer.machine):
            self._held.append((sender, arrive))
            return
        at = max(sender._arrives, self.loop.now + self._delay(sender.machine))
        sender._arrives = at
        self.loop.call_at(at, self._arrive, sender, arrive, context=self.loop.system.context)

    def _arrive(self, sender: Transport, arrive: Callable[[], None]) -> None:
        if self._is_cut(sender.machine, sender.peer.machine):
            self._held.append((sender, arrive))
        else:
            arrive()

    def heal(self, *names: str) -> None:
        """Ends a partition: what it held back arrives."""
        self.cut.discard(frozenset(names))
        held, self._held = self._held, []
        for sender, arrive in held:
            self.later(sender, arrive)

    def lost(self, machine: Machine, *, silently: bool = False) -> None:
        """Ends the connections and listeners of a process that was killed. `silently`: its machine is lost, too."""
        for address in [address for address, (owner, _) in self.listeners.items() if owner is machine]:
            del self.listeners[address]
        for transport in [one for one in self.open if one.machine is machine]:
            del self.open[transport]
            transport._lost = transport._closing = True
            if not silently:
                self.later(transport, transport.peer._reset)

    def _delay(self, machine: Machine) -> float:
        low, high = DELAY_S
        return low + (high - low) * self.loop.random.random() + self.slow.get(machine.name, 0.0)

    def _is_cut(self, one: Machine, other: Machine) -> bool:
        cut = self.cut
        return bool(cut) and (
            frozenset((one.name,)) in cut or frozenset((other.name,)) in cut or frozenset((one.name, other.name)) in cut
        )
