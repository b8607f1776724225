"""TCP connections between simulated processes: in order, with delays, back-pressure, partitions and
resets.

The bytes of a connection are never lost or reordered while it lives. Those that a partition holds
back arrive when it ends, as TCP sends them again. The connections of a process that is killed end,
unless its machine is lost: then its peers notice nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from typing_extensions import override

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

    def __init__(
        self, network: "Network", machine: Machine, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"socket": _Socket(local), "sockname": local, "peername": remote})
        self.network = network
        self.machine = machine
        self.peer: Transport
        self.protocol: Any = None
        self.flight: deque[Callable[[], None]] = deque()
        """Sent, not yet arrived at the peer."""
        self.arrives = 0.0
        """When the last of it arrives, unless a partition holds it back."""
        self._out: deque[memoryview] = deque()
        """Written, not yet taken by the peer's kernel."""
        self._out_bytes = 0
        self._in: deque[memoryview] = deque()
        """Arrived, not yet read."""
        self._in_bytes = 0
        self._on_the_way = 0
        self._high = HIGH_WATER_BYTES
        self._paused_writing = False
        self._paused_reading = False
        self._reading = False
        """Whether a call of `_read` is scheduled."""
        self._closing = False
        self._lost = False
        self.silent = False
        """Whether its machine is lost: nothing answers. Another machine in its place resets the
        connection."""
        self._eof_wanted = self._eof_sent = False
        self._eof_in = self._eof_reported = False
        self._reset_in = False

    # -- asyncio.Transport

    @override
    def get_protocol(self) -> Any:
        return self.protocol

    @override
    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    @override
    def is_closing(self) -> bool:
        return self._closing

    @override
    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    @override
    def pause_reading(self) -> None:
        self._paused_reading = True

    @override
    def resume_reading(self) -> None:
        self._paused_reading = False
        self._read_soon()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high

    @override
    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    @override
    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    @override
    def write(self, data: Any) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if self._reset_in:
            self._end_soon(ConnectionResetError(104, "Connection reset by peer"))
            return
        self._out.append(memoryview(bytes(data)))
        self._out_bytes += len(data)
        self._push()
        if self._out_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    @override
    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self._eof_wanted = True
        self._push()

    @override
    def close(self) -> None:
        self._closing = True
        self._push()

    @override
    def abort(self) -> None:
        self._closing = True
        self._end_soon(None)

    # -- the kernels

    def _push(self) -> None:
        """Sends what the peer's kernel takes."""
        if self._lost:
            return
        room = RECEIVE_BYTES - self.peer._in_bytes - self._on_the_way
        while self._out and room > 0:
            data = self._out.popleft()
            if len(data) > room:
                self._out.appendleft(data[room:])
                data = data[:room]
            room -= len(data)
            self._out_bytes -= len(data)
            self._on_the_way += len(data)
            self.network.send(self, lambda data=data: self._arrived(data))  # type: ignore[misc]
        if not self._out and self._closing:
            self._end_soon(None)
        elif not self._out and self._eof_wanted and not self._eof_sent:
            self._eof_sent = True
            self.network.send(self, self.peer._take_eof)
        if self._paused_writing and self._out_bytes <= self._high // 4:
            self._paused_writing = False
            self.network.loop.call_soon(self._resume_writing, context=self.machine.context)

    def _resume_writing(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()

    def _arrived(self, data: memoryview) -> None:
        peer = self.peer
        self._on_the_way -= len(data)
        if peer._lost:
            if not peer.silent:
                self.network.send(peer, self._take_reset)
            return
        peer._in.append(data)
        peer._in_bytes += len(data)
        peer._read_soon()

    def _take_eof(self) -> None:
        self._eof_in = True
        self._read_soon()

    def _take_reset(self) -> None:
        self._reset_in = True
        self._read_soon()

    def _read_soon(self) -> None:
        something = self._in or self._reset_in or (self._eof_in and not self._eof_reported)
        if something and not self._reading and not self._paused_reading and not self._lost:
            self._reading = True
            self.network.loop.call_soon(self._read, context=self.machine.context)

    def _read(self) -> None:
        """Passes to the protocol what arrived: data, then the end."""
        self._reading = False
        if self._paused_reading or self._lost:
            return
        if self._in and not self._closing:
            data = self._take(READ_BYTES)
            self.network.loop.call_soon(self.peer._push, context=self.network.loop.system.context)
            self.protocol.data_received(data)
            self._read_soon()
        elif self._reset_in:
            self._end_soon(ConnectionResetError(104, "Connection reset by peer"))
        elif self._eof_in and not self._closing and not self._eof_reported:
            self._eof_reported = True
            if not self.protocol.eof_received():
                self.close()

    def _take(self, most: int) -> bytes:
        parts: list[memoryview] = []
        while self._in and most > 0:
            part = self._in.popleft()
            if len(part) > most:
                self._in.appendleft(part[most:])
                part = part[:most]
            most -= len(part)
            self._in_bytes -= len(part)
            parts.append(part)
        return b"".join(parts)

    def hang_up(self) -> None:
        """Closes the socket, as the end of its process does too: the peer gets an end, or a reset
        if something was not read."""
        unread = bool(self._in)
        self._lost = self._closing = True
        self._out.clear()
        self._out_bytes = 0
        self._in.clear()
        self._in_bytes = 0
        self.network.open.pop(self, None)
        if not self.silent:
            self.network.send(self, self.peer._take_reset if unread else self.peer._take_eof)

    def _end_soon(self, error: Exception | None) -> None:
        if not self._lost:
            self.hang_up()
            if self.protocol is not None:
                context = self.machine.context
                self.network.loop.call_soon(self.protocol.connection_lost, error, context=context)


class Network:
    """All connections and listeners."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        loop.network = self
        self.listeners: dict[tuple[str, int], tuple[Machine, Callable[[], Any]]] = {}
        self.open: dict[Transport, None] = {}
        self.cut: set[frozenset[str]] = set()
        """Pairs of processes that do not reach each other; `frozenset((name,))`: one process
        reaches nobody."""
        self._held: dict[Transport, int] = {}
        """How many arrivals of a sender a partition holds back."""
        self._silent: set[tuple[str, int]] = set()
        """Addresses of machines that are lost: nothing answers there."""
        self._gone: dict[str, list[Transport]] = {}
        """Ends of connections on machines that are lost, by the machine's name."""
        self._port = 40_000
        self.slow: dict[str, float] = {}
        """Additional delay of a process's bytes, in seconds."""

    def listen(self, factory: Any, host: Any, port: Any) -> _Server:
        """Listens at an address. Raises OSError if it is taken."""
        machine = self._running()
        if not port:
            self._port += 1
            port = self._port
        address = (str(host), int(port))
        if address in self.listeners:
            raise OSError(98, "address already in use")
        self._silent.discard(address)
        self.listeners[address] = machine, factory
        return _Server(self, address)

    async def connect(self, factory: Any, host: Any, port: Any) -> tuple[Transport, Any]:
        """Connects to an address. Raises ConnectionRefusedError if nobody listens there."""
        machine = self._running()
        await asyncio.sleep(self._delay(machine))
        address = (str(host), int(port))
        while address in self._silent or self._cut_off(machine, address):  # noqa: ASYNC110
            await asyncio.sleep(1.0)  # SYN is sent again
        listener = self.listeners.get(address)
        if listener is None or not listener[0].alive:
            raise ConnectionRefusedError(111, f"connect call failed {address}")
        server, make = listener
        self._port += 1
        local = (f"10.0.0.{1 + self._port % 250}", self._port)
        near, far = (
            Transport(self, machine, local, address),
            Transport(self, server, address, local),
        )
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

    def send(self, sender: Transport, arrive: Callable[[], None]) -> None:
        """Lets something arrive at the sender's peer, after all that was sent before it."""
        sender.flight.append(arrive)
        sender.arrives = max(sender.arrives, self.loop.now + self._delay(sender.machine))
        self.loop.call_at(sender.arrives, self._arrive, sender, context=self.loop.system.context)

    def _arrive(self, sender: Transport) -> None:
        if self.is_cut(sender.machine, sender.peer.machine):
            self._held[sender] = self._held.get(sender, 0) + 1
        else:
            sender.flight.popleft()()

    def heal(self, *names: str) -> None:
        """Ends a partition: what it held back arrives."""
        self.cut.discard(frozenset(names))
        held, self._held = self._held, {}
        for sender, count in held.items():
            at = self.loop.now + self._delay(sender.machine)
            for _ in range(count):
                self.loop.call_at(at, self._arrive, sender, context=self.loop.system.context)

    def lost(self, machine: Machine, *, silently: bool = False) -> None:
        """Ends the connections and listeners of a process that was killed. `silently`: its machine
        is lost, too."""
        for address in [
            address for address, (owner, _) in self.listeners.items() if owner is machine
        ]:
            del self.listeners[address]
            if silently:
                self._silent.add(address)
        for transport in [transport for transport in self.open if transport.machine is machine]:
            if silently:
                transport.silent = True
                self._gone.setdefault(machine.name, []).append(transport)
                transport.hang_up()
            else:
                transport.hang_up()

    def _running(self) -> Machine:
        """The process that runs now. If it takes the place of a lost machine, that one's
        connections get a reset."""
        machine = running_machine() or self.loop.system
        for transport in self._gone.pop(machine.name, ()):
            transport.silent = False
        return machine

    def _cut_off(self, machine: Machine, address: tuple[str, int]) -> bool:
        listener = self.listeners.get(address)
        return listener is not None and self.is_cut(machine, listener[0])

    def _delay(self, machine: Machine) -> float:
        low, high = DELAY_S
        return low + (high - low) * self.loop.random.random() + self.slow.get(machine.name, 0.0)

    def is_cut(self, machine: Machine, other: Machine) -> bool:
        """Whether a partition separates two processes."""
        cut = self.cut
        return bool(cut) and (
            frozenset((machine.name,)) in cut
            or frozenset((other.name,)) in cut
            or frozenset((machine.name, other.name)) in cut
        )
