"""A model of nats-server: the protocol of clients, at-most-once delivery, routes, and the streams of buckets.

`tests/simulation/test_simulation_nats.py` runs the same cases on this model and on real servers.

A server is a simulated process: while it is frozen it reads and answers nothing; when it is killed its clients'
connections end. Servers of a `Cluster` are joined by routes, which are connections of the simulated network. Who leads
a stream is decided for all servers at once, by who reaches whom; everything else a server learns from its connections.
"""

import asyncio
import json
import marshal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simulation import nats_streams
from simulation.loop import Machine, SimLoop
from simulation.nats_streams import API, Json, Stream, matches

MAX_PAYLOAD = 8 * 1024 * 1024
MAX_LINE = 4096
MAX_PENDING = 64 * 1024 * 1024
"""A client that has not taken this many bytes is a slow consumer, and is disconnected."""
ROUTE_PORT = 6222
ROUTE_RETRY_S = 1.0
STORE_S = 200e-6
"""Delay of an answer of the store."""
LAG_S = 2e-3
"""Time within which the other servers of a stream have what its leader stored."""
BEAT_S = 1.0
ELECTION_S = (4.0, 9.0)
"""Range of the time after which servers that miss a leader have another one."""
LOST_QUORUM_S = 10.0
"""After this time without a majority a leader is none any more."""
HISTORY_S = 120.0
_TEMPORARILY_UNAVAILABLE = nats_streams.error(503, 10008, "JetStream system temporarily unavailable")
_OUT_OF_SPACE = nats_streams.error(503, 10077, "error opening msg block file: no space left on device")


@dataclass
class Group:
    """The servers that hold a stream together; `stream` is None for the group of all servers."""

    peers: list[str]
    stream: Stream | None
    leader: str | None
    missed_at: float | None = None
    """Since when no leader reaches a majority."""
    election_at: float = 0.0
    late_since: dict[str, float] = field(default_factory=dict)
    """Servers that do not hear the leader."""


class Cluster:
    """Servers that act as one, with the streams that they hold together."""

    def __init__(
        self, loop: SimLoop, *, jetstream: bool = True, write_deadline_s: float = 5.0, ping_s: float = 20.0
    ) -> None:
        """
        Args:
            write_deadline_s: a client that takes nothing for this time is a slow consumer, and is disconnected.
            ping_s: interval of the pings to clients and between servers. The third without an answer ends a connection.
        """
        self.loop = loop
        self.jetstream = jetstream
        self.write_deadline_s = write_deadline_s
        self.ping_s = ping_s
        self.servers: dict[str, Server] = {}
        """Those that run, by host."""
        self.groups: dict[str, Group] = {}
        """The streams, by name."""
        self.everyone = Group([], None, None)
        self.disk_full = False
        self.loss = 0.0
        """Share of messages of `tw.` subjects that are lost between server and subscriber."""
        self.names = 0
        self._beating = False

    # -- servers ------------------------------------------------------------------------------------------------------

    def join(self, server: "Server") -> None:
        """Takes a server in that starts."""
        self.servers[server.host] = server
        if server.host not in self.everyone.peers:
            self.everyone.peers.append(server.host)
        for group in self._all_groups():
            if group.peers == [server.host]:
                group.leader = server.host
        for other in self.servers.values():
            if other is not server:
                dialer, target = (other, server) if other.host > server.host else (server, other)
                dialer.dial(target.host)
        if len(self.everyone.peers) > 1 and not self._beating:
            self._beating = True
            self._beat()

    def leave(self, server: "Server") -> None:
        """Forgets a server that was killed."""
        del self.servers[server.host]
        for name, group in list(self.groups.items()):
            if group.peers == [server.host]:
                group.leader = None
                assert group.stream is not None
                if group.stream.storage == "memory":
                    if len(self.everyone.peers) == 1:
                        del self.groups[name]
                    else:
                        group.stream = Stream(group.stream.config)

    def lose_writes(self, since_s: float) -> None:
        """Loses the last writes of streams on a single server: its machine failed before the disk had them."""
        for group in self.groups.values():
            if len(group.peers) == 1 and group.stream is not None:
                group.stream.lose_after(self.loop.now - since_s)

    def _all_groups(self) -> list[Group]:
        return [self.everyone, *self.groups.values()]

    def _is_up(self, host: str) -> bool:
        server = self.servers.get(host)
        return server is not None and server.machine.alive and not server.machine.frozen

    def reached(self, group: Group, host: str | None) -> list[str]:
        """The servers of a group that a server reaches; itself is one."""
        if host is None or not self._is_up(host):
            return []
        machine, network = self.servers[host].machine, self.loop.network
        return [
            one
            for one in group.peers
            if self._is_up(one) and (one == host or not network.is_cut(machine, self.servers[one].machine))
        ]

    def has_majority(self, group: Group, host: str | None) -> bool:
        """Whether a server reaches most servers of a group."""
        return len(self.reached(group, host)) > len(group.peers) // 2

    def _beat(self) -> None:
        """Notices leaders that are missing, and elects others."""
        self.loop.call_later(BEAT_S, self._beat, context=self.loop.system.context)
        now, random = self.loop.now, self.loop.random
        for group in self._all_groups():
            if self.has_majority(group, group.leader):
                group.missed_at = None
                there = self.reached(group, group.leader)
                for host in group.peers:
                    if host in there:
                        group.late_since.pop(host, None)
                    else:
                        group.late_since.setdefault(host, now)
                continue
            if group.missed_at is None:
                group.missed_at = now
                group.election_at = now + random.uniform(*ELECTION_S)
            able = [host for host in group.peers if self.has_majority(group, host) and host not in group.late_since]
            if able and now >= group.election_at and len(group.peers) > 1:
                group.leader = able[int(random.random() * len(able))]
                group.missed_at = None
            elif not able and now >= group.missed_at + LOST_QUORUM_S:
                group.leader = None

    # -- streams ------------------------------------------------------------------------------------------------------

    def group_of(self, subject: str) -> Group | None:
        """The stream that stores messages of a subject."""
        for group in self.groups.values():
            if group.stream is not None and any(matches(one, subject) for one in group.stream.config["subjects"]):
                return group
        return None

    def view(self, group: Group, host: str) -> list[nats_streams.Stored]:
        """The messages of a stream that a server has."""
        assert group.stream is not None
        group.stream.expire(self.loop.now)
        if host == group.leader:
            return list(group.stream.messages.values())
        time = group.late_since.get(host, self.loop.now - LAG_S * self.loop.random.random())
        return group.stream.at(time)

    def call(self, verb: str, name: str, data: bytes) -> Json | None:
        """Makes a call of JetStream's interface for streams; returns None for one that does not exist."""
        if verb not in ("CREATE", "UPDATE", "DELETE", "PURGE", "INFO", "MSG.DELETE"):
            return None
        answer = nats_streams.answer(verb)
        try:
            request: Json = json.loads(data) if data and verb in ("CREATE", "UPDATE", "PURGE") else {}
        except ValueError:
            return answer | nats_streams.error(400, 10025, "invalid JSON: unexpected EOF")
        group = self.groups.get(name)
        if verb in ("CREATE", "UPDATE"):
            if (refusal := self._refusal(name, request, group, verb)) is not None:
                return answer | refusal
        elif group is None:
            return answer | nats_streams.error(404, 10059, "stream not found")
        now = self.loop.now
        if group is None:
            copies = request.get("num_replicas") or 1
            group = self.groups[name] = self._placed(Stream(request, HISTORY_S if copies > 1 else 0.0), copies)
        stream = group.stream
        assert stream is not None
        if verb == "MSG.DELETE":
            return answer | nats_streams.error(500, 10057, "message delete not permitted")
        if verb == "UPDATE":
            stream.config = request
            stream.fit(now)
        elif verb == "DELETE":
            del self.groups[name]
            return answer | {"success": True}
        elif verb == "PURGE":
            return answer | {"success": True, "purged": stream.purge(request.get("filter") or ">", now)}
        return answer | nats_streams.description(stream, now)

    def _placed(self, stream: Stream, copies: int) -> Group:
        up = [host for host in self.everyone.peers if self._is_up(host)]
        peers = self.loop.random.sample(up, min(copies, len(up)))
        return Group(peers, stream, peers[0])

    def _refusal(self, name: str, request: Json, group: Group | None, verb: str) -> Json | None:
        if request.get("name") != name:
            return nats_streams.error(400, 10056, "stream name in subject does not match request")
        if (request.get("num_replicas") or 1) > len(self.everyone.peers):
            if len(self.everyone.peers) == 1:
                return nats_streams.error(500, 10074, "replicas > 1 not supported in non-clustered mode")
            return nats_streams.error(400, 10005, "no suitable peers for placement, insufficient servers available")
        if (request.get("max_bytes") or 0) > nats_streams.STORE_BYTES:
            return nats_streams.error(500, 10047, "insufficient storage resources available")
        if group is None or group.stream is None:
            if verb == "UPDATE":
                return nats_streams.error(404, 10059, "stream not found")
            taken = [one.stream.config["subjects"] for one in self.groups.values() if one.stream is not None]
            if any(subjects == request["subjects"] for subjects in taken):
                return nats_streams.error(400, 10065, "subjects overlap with an existing stream")
        elif verb == "UPDATE":
            return nats_streams.change_refusal(group.stream.config, request)
        elif group.stream.config != request:
            return nats_streams.error(400, 10058, "stream name already in use with a different configuration")
        return None


class Subscriptions:
    """Subscribers by subject."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Any, None]] = {}
        self._patterns: dict[str, dict[Any, None]] = {}
        self._found: dict[str, list[Any]] = {}
        """What `find` returned since the last change."""

    def add(self, subject: str, subscriber: object) -> bool:
        """Adds a subscriber; returns whether the subject had none."""
        self._found.clear()
        found = self._table(subject).setdefault(subject, {})
        found[subscriber] = None
        return len(found) == 1

    def remove(self, subject: str, subscriber: object) -> bool:
        """Removes a subscriber; returns whether the subject has none left."""
        self._found.clear()
        table = self._table(subject)
        del table[subject][subscriber]
        if table[subject]:
            return False
        del table[subject]
        return True

    def find(self, subject: str) -> list[Any]:
        """The subscribers that get a message."""
        found = self._found.get(subject)
        if found is None:
            found = list(self._exact.get(subject, ()))
            for pattern, subscribers in self._patterns.items():
                if matches(pattern, subject):
                    found += subscribers
            self._found[subject] = found
        return found

    def subjects(self) -> list[str]:
        """All subjects with subscribers."""
        return [*self._exact, *self._patterns]

    def _table(self, subject: str) -> dict[str, dict[Any, None]]:
        return self._patterns if "*" in subject or ">" in subject else self._exact


class Server:
    """One server of a cluster."""

    def __init__(self, cluster: Cluster, machine: Machine, host: str, port: int) -> None:
        self.cluster = cluster
        self.machine = machine
        self.host, self.port = host, port
        self.clients: dict[Connection, None] = {}
        self.subscriptions = Subscriptions()
        self.routes: dict[str, Route] = {}
        """By the host of the other server."""
        self._dialled: set[str] = set()
        self.numbers = 0
        cluster.names += 1
        self.id = f"SIM{cluster.names}"

    async def start(self) -> None:
        """Listens."""
        loop = self.cluster.loop
        await loop.create_server(lambda: Connection(self), self.host, self.port)
        await loop.create_server(lambda: Route(self), self.host, ROUTE_PORT)
        self.cluster.join(self)

    def stopped(self) -> None:
        """Removes the server from the cluster, because its process was killed."""
        self.cluster.leave(self)

    # -- routes -------------------------------------------------------------------------------------------------------

    def dial(self, host: str) -> None:
        """Keeps a route to another server."""
        if host not in self._dialled:
            self._dialled.add(host)
            self.cluster.loop.create_task(self._keep_route(host), context=self.machine.context)

    async def _keep_route(self, host: str) -> None:
        loop = self.cluster.loop
        while True:
            try:
                _, route = await loop.create_connection(lambda: Route(self), host, ROUTE_PORT)
                await route.ended
            except OSError:
                pass
            await asyncio.sleep(ROUTE_RETRY_S)

    def routes_changed(self) -> None:
        """Sends clients the addresses of the servers that can be reached now."""
        for client in self.clients:
            client.send_info()

    @property
    def addresses(self) -> list[str]:
        """Addresses of this server and of those that it has a route to."""
        return [f"{host}:{self.port}" for host in (self.host, *self.routes)]

    def subscribe(self, subject: str, subscriber: "Subscription") -> None:
        """Adds a client's subscription."""
        if self.subscriptions.add(subject, subscriber):
            for route in self.routes.values():
                route.send("+", subject)

    def unsubscribe(self, subject: str, subscriber: "Subscription") -> None:
        """Removes a client's subscription."""
        if self.subscriptions.remove(subject, subscriber):
            for route in self.routes.values():
                route.send("-", subject)

    # -- messages -----------------------------------------------------------------------------------------------------

    def publish(self, subject: str, reply: str, headers: bytes, data: bytes, source: "Connection | None" = None) -> int:
        """Passes a message to all subscriptions and streams; returns how many of them there are."""
        if ".." in subject or subject[0] == "." or subject[-1] == ".":
            return 0
        count = self.deliver(subject, reply, headers, data, source)
        wanting = [host for host, route in self.routes.items() if route.interest.find(subject)]
        if subject.startswith("$") and self.cluster.jetstream:
            if subject.startswith(API):
                return count + self._api(subject.removeprefix(API), reply, data)
            group = self.cluster.group_of(subject)
            if group is not None and group.leader == self.host:
                self._append(group, subject, reply, headers, data)
                count += 1
            elif group is not None and group.leader in self.routes and group.leader not in wanting:
                wanting.append(group.leader)
        for host in wanting:
            self.routes[host].send("M", subject, reply, headers, data)
        return count + len(wanting)

    def deliver(self, subject: str, reply: str, headers: bytes, data: bytes, source: "Connection | None" = None) -> int:
        """Sends a message to this server's subscriptions; returns their number."""
        count, loss = 0, self.cluster.loss
        for subscription in self.subscriptions.find(subject):
            if subscription.client is source and not source.echoes:
                continue
            count += 1
            if not loss or not subject.startswith("tw.") or self.cluster.loop.random.random() >= loss:
                subscription.client.send_message(subject, subscription, reply, headers, data)
        return count

    def take(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Handles a message from another server."""
        self.deliver(subject, reply, headers, data)
        group = self.cluster.group_of(subject) if subject.startswith("$") else None
        if group is not None and group.leader == self.host:
            self._append(group, subject, reply, headers, data)

    # -- streams ------------------------------------------------------------------------------------------------------

    def _append(self, group: Group, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Stores a message as the stream's leader. Without a majority nobody answers."""
        stream, cluster = group.stream, self.cluster
        assert stream is not None
        if not cluster.has_majority(group, self.host):
            return
        name = {"stream": stream.config["name"]}
        refusal = _OUT_OF_SPACE if cluster.disk_full else stream.refusal(subject, headers, data)
        if refusal is not None:
            answer = refusal | name | {"seq": 0}
        else:
            answer = name | {"seq": stream.put(subject, headers, data, cluster.loop.now)}
        self._answer(reply, b"", json.dumps(answer).encode(), STORE_S * len(group.peers))

    def _api(self, call: str, reply: str, data: bytes) -> int:
        """Handles a client's request to JetStream; returns whether there is a server for it."""
        if call.startswith("DIRECT.GET."):
            return self._direct(call.removeprefix("DIRECT.GET."), reply, data)
        cluster = self.cluster
        kind, _, rest = call.partition(".")
        verb, _, name = rest.rpartition(".")
        leader = cluster.everyone.leader
        if kind != "STREAM":
            return 1
        if leader is None:
            self._answer(reply, b"", json.dumps(nats_streams.answer(verb) | _TEMPORARILY_UNAVAILABLE).encode())
            return 1
        if verb in ("INFO", "PURGE") and name in cluster.groups:
            leader = cluster.groups[name].leader
        if leader == self.host:
            self.take_call(verb, name, reply, data)
        elif leader in self.routes:
            self.routes[leader].send("C", verb, name, reply, data)
        return 1

    def take_call(self, verb: str, name: str, reply: str, data: bytes) -> None:
        """Answers a call as its leader."""
        cluster = self.cluster
        group = cluster.groups.get(name, cluster.everyone)
        if cluster.has_majority(cluster.everyone, self.host) or cluster.has_majority(group, self.host):
            answer = cluster.call(verb, name, data)
            if answer is not None:
                self._answer(reply, b"", json.dumps(answer).encode())

    def _direct(self, request: str, reply: str, data: bytes) -> int:
        """Passes a request for stored messages to any server that has the stream."""
        name, _, subject = request.partition(".")
        group = self.cluster.groups.get(name)
        if group is None or group.stream is None or not group.stream.config.get("allow_direct"):
            return 0
        able = [host for host in group.peers if host == self.host or host in self.routes]
        if not able:
            return 0
        host = able[0] if len(able) == 1 else able[int(self.cluster.loop.random.random() * len(able))]
        if host == self.host:
            self.take_direct(name, subject, reply, data)
        else:
            self.routes[host].send("D", name, subject, reply, data)
        return 1

    def take_direct(self, name: str, subject: str, reply: str, data: bytes) -> None:
        """Answers a request for stored messages."""
        group = self.cluster.groups.get(name)
        if group is None or group.stream is None:
            return
        view = self.cluster.view(group, self.host)
        for headers, value in nats_streams.direct_answers(group.stream, subject, data, view):
            self._answer(reply, headers, value)

    def _answer(self, reply: str, headers: bytes, data: bytes, delay_s: float = STORE_S) -> None:
        """Sends an answer of the store to whoever subscribes to `reply`, after its disk or network."""
        if reply:
            loop = self.cluster.loop
            loop.call_later(delay_s, self.publish, reply, "", headers, data, context=self.machine.context)


class Route(asyncio.Protocol):
    """A connection to another server. Each operation is a length and a marshalled tuple."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: Any = None
        self._host = ""
        """Known from the other's first operation."""
        self.interest = Subscriptions()
        """What the other server's clients subscribe to."""
        self.ended: asyncio.Future[None] = server.cluster.loop.create_future()
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Introduces this server."""
        self._transport = transport
        self.send("I", self._server.host)
        for subject in self._server.subscriptions.subjects():
            self.send("+", subject)
        self._ping_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets what the other server's clients subscribe to."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        if self._server.routes.get(self._host) is self:
            del self._server.routes[self._host]
            self._server.routes_changed()

    def send(self, *operation: str | bytes) -> None:
        """Sends an operation."""
        data = marshal.dumps(operation)
        self._transport.write(len(data).to_bytes(4, "big") + data)

    def data_received(self, data: bytes) -> None:
        """Handles all whole operations."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
            operation = marshal.loads(buffer[4:size])
            del buffer[:size]
            self._handle(*operation)

    def _handle(self, verb: str, *fields: Any) -> None:
        server = self._server
        match verb:
            case "M":
                server.take(*fields)
            case "D":
                server.take_direct(*fields)
            case "C":
                server.take_call(*fields)
            case "+":
                self.interest.add(fields[0], self)
            case "-":
                self.interest.remove(fields[0], self)
            case "I":
                self._host = fields[0]
                if (before := server.routes.get(self._host)) is not None:
                    before._transport.abort()
                server.routes[self._host] = self
                server.routes_changed()
            case "PING":
                self.send("PONG")
            case "PONG":
                self._pings = 0

    def _ping_later(self) -> None:
        cluster = self._server.cluster
        self._timer = cluster.loop.call_later(cluster.ping_s, self._ping)

    def _ping(self) -> None:
        self._pings += 1
        if self._pings > 2:
            self._transport.abort()
            return
        self.send("PING")
        self._ping_later()


@dataclass(eq=False)
class Subscription:
    """A client's subscription."""

    client: "Connection"
    sid: bytes
    subject: str
    delivered: int = 0
    most: int | None = None


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._subscriptions: dict[bytes, Subscription] = {}
        self._message: tuple[str, str, int, int] | None = None
        """(subject, reply, bytes of headers, bytes in all) of a message that is being read."""
        self._options: Json = {}
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._written = 0
        self._batch = 0
        """How much must be written by the deadline."""
        self._pings = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._last_in = 0.0
        server.numbers += 1
        self._number = server.numbers

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Greets the client."""
        self._transport = transport
        self._server.clients[self] = None
        self.send_info()
        self._ping_later()

    def send_info(self) -> None:
        """Sends the description of the server."""
        server = self._server
        info: Json = {
            "server_id": server.id,
            "server_name": server.id,
            "version": "2.15.1",
            "proto": 1,
            "host": server.host,
            "port": server.port,
            "headers": True,
            "max_payload": MAX_PAYLOAD,
            "jetstream": server.cluster.jetstream,
            "client_id": self._number,
        }
        if len(server.cluster.everyone.peers) > 1:
            info["connect_urls"] = server.addresses
        self._write(b"INFO " + json.dumps(info).encode() + b" \r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the client's subscriptions."""
        self._server.clients.pop(self, None)
        for subscription in self._subscriptions.values():
            self._server.unsubscribe(subscription.subject, subscription)
        self._subscriptions.clear()
        for timer in (self._deadline, self._ping_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Begins to wait for a client that does not read."""
        self._batch = self._written
        self._deadline = self._server.cluster.loop.call_later(self._server.cluster.write_deadline_s, self._overdue)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self) -> None:
        """Ends the connection, unless what was pending when the deadline began was written."""
        if self._written - self._transport.get_write_buffer_size() < self._batch:
            self._transport.abort()
        else:
            self.pause_writing()

    def _ping_later(self) -> None:
        cluster = self._server.cluster
        self._ping_timer = cluster.loop.call_later(cluster.ping_s, self._ping)

    def _ping(self) -> None:
        """Pings a client that was silent; the third ping without an answer ends the connection."""
        cluster = self._server.cluster
        if cluster.loop.now - self._last_in >= cluster.ping_s:
            if self._pings == 2:
                self._end("Stale Connection")
                return
            self._pings += 1
            self._write(b"PING\r\n")
        self._ping_later()

    def data_received(self, data: bytes) -> None:
        """Handles all whole operations."""
        buffer = self._buffer
        buffer += data
        self._last_in = self._server.cluster.loop.now
        while not self._transport.is_closing():
            if self._message is not None:
                size = self._message[3]
                if len(buffer) < size + 2:
                    return
                payload, end = bytes(buffer[:size]), buffer[size : size + 2]
                del buffer[: size + 2]
                if end != b"\r\n":
                    self._end("Unknown Protocol Operation")
                    return
                self._publish(payload)
                continue
            at = buffer.find(b"\n")
            if (at if at >= 0 else len(buffer)) > MAX_LINE:
                self._end("maximum control line exceeded")
                return
            if at < 0:
                return
            line = bytes(buffer[:at]).removesuffix(b"\r")
            del buffer[: at + 1]
            try:
                self._operation(line)
            except ValueError:
                self._end()

    # -- operations ---------------------------------------------------------------------------------------------------

    def _operation(self, line: bytes) -> None:
        """Handles an operation, of which a message is only the first line. Raises ValueError if it is malformed."""
        verb, *fields = line.split(None, 1) or [b""]
        arguments = fields[0].split() if fields else []
        match verb.upper(), len(arguments):
            case b"PUB", 2 | 3:
                self._announce(arguments, b"0")
            case b"HPUB", 3 | 4 if self._options.get("headers"):
                self._announce(arguments[:-2] + arguments[-1:], arguments[-2])
            case b"SUB", 2:
                self._ok()
                self._subscribe(arguments[0].decode(), arguments[1])
            case b"UNSUB", 1 | 2:
                self._ok()
                self._unsubscribe(arguments[0], int(arguments[1]) if len(arguments) > 1 else 0)
            case b"PING", _:
                self._write(b"PONG\r\n")
            case b"PONG", _:
                self._pings = 0
            case b"CONNECT", _ if fields:
                self._options = {"verbose": True, "pedantic": True, "echo": True} | json.loads(fields[0])
                if self._options.get("no_responders") and not self._options.get("headers"):
                    self._end("no responders requires headers support")
                else:
                    self._ok()
            case ((b"PUB" | b"HPUB" | b"SUB" | b"UNSUB"), count) if count:
                raise ValueError(line)
            case _:
                self._end("Unknown Protocol Operation")

    def _announce(self, arguments: list[bytes], size_of_headers: bytes) -> None:
        *names, last = arguments
        size, head = int(last), int(size_of_headers)
        if not 0 <= head <= size:
            raise ValueError(last)
        if size > MAX_PAYLOAD:
            self._end("Maximum Payload Violation")
            return
        subject = names[0].decode()
        if self._options.get("pedantic") and not (_is_valid(subject) and "*" not in subject and ">" not in subject):
            self._write(b"-ERR 'Invalid Publish Subject'\r\n")
        self._message = subject, names[1].decode() if len(names) > 1 else "", head, size

    def _ok(self) -> None:
        if self._options.get("verbose"):
            self._write(b"+OK\r\n")

    def _end(self, why: str = "") -> None:
        """Closes the connection because of an error of the client."""
        if why:
            self._write(f"-ERR '{why}'\r\n".encode())
        self._transport.close()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_PENDING:
            self._transport.abort()

    def _subscribe(self, subject: str, sid: bytes) -> None:
        if not _is_valid(subject) or ">" in subject.split(".")[:-1]:
            self._write(b"-ERR 'Invalid Subject'\r\n")
        elif sid not in self._subscriptions:
            subscription = self._subscriptions[sid] = Subscription(self, sid, subject)
            self._server.subscribe(subject, subscription)

    def _unsubscribe(self, sid: bytes, most: int) -> None:
        subscription = self._subscriptions.get(sid)
        if subscription is None:
            return
        if subscription.delivered < most:
            subscription.most = most
        else:
            self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.sid]
        self._server.unsubscribe(subscription.subject, subscription)

    @property
    def echoes(self) -> bool:
        """Whether the client gets its own messages."""
        return bool(self._options.get("echo", True))

    def _publish(self, payload: bytes) -> None:
        assert self._message is not None
        (subject, reply, head, _), self._message = self._message, None
        self._ok()
        count = self._server.publish(subject, reply, payload[:head], payload[head:], self)
        if not count and reply and self._options.get("no_responders"):
            status = f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()
            for subscription in self._matching(reply):
                self.send_message(reply, subscription, "", status, b"")
                return

    def _matching(self, subject: str) -> Iterator[Subscription]:
        return (one for one in self._subscriptions.values() if matches(one.subject, subject))

    def send_message(self, subject: str, subscription: Subscription, reply: str, headers: bytes, data: bytes) -> None:
        """Sends a message to one subscription."""
        if self._transport.is_closing():
            return
        names = f"{subject} {subscription.sid.decode()} {reply + ' ' if reply else ''}"
        if headers and self._options.get("headers"):
            head = f"HMSG {names}{len(headers)} {len(headers) + len(data)}\r\n".encode() + headers
        else:
            head = f"MSG {names}{len(data)}\r\n".encode()
        self._write(head + data + b"\r\n")
        subscription.delivered += 1
        if subscription.most is not None and subscription.delivered >= subscription.most:
            self._forget(subscription)


def _is_valid(subject: str) -> bool:
    return "" not in subject.split(".")
