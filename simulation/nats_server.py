"""A model of nats-server: the protocol that clients speak, at-most-once delivery, and the streams of key-value buckets.

`tests/simulation/test_simulation_nats.py` runs the same cases against this model and against a real nats-server.

A server is a simulated process: while it is frozen it reads and answers nothing; when it is killed its clients'
connections end, and what it had not written to its disk is lost. Servers of a `Cluster` pass each other's messages on;
a stream has one leader among them, and without it nobody answers.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simulation.loop import Machine, SimLoop

MAX_PAYLOAD = 8 * 1024 * 1024
WRITE_DEADLINE_S = 5.0
"""A client that takes nothing for this time is a slow consumer, and is disconnected (deploy/nats/nats.conf)."""
ROUTE_S = 200e-6
"""Delay between two servers of a cluster."""
API = "$JS.API."
_NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_END_OF_BATCH = b"NATS/1.0 204 EOB\r\n\r\n"


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a subscription's pattern (`*`: one token, `>`: all that follow)."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > at
        if at >= len(tokens) or token not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)


@dataclass
class Stored:
    """A message of a stream."""

    seq: int
    subject: str
    headers: bytes
    data: bytes
    time: float

    @property
    def size(self) -> int:
        """Bytes on the disk: those of nats-server's file store."""
        return len(self.subject) + len(self.data) + (22 + len(self.headers) + 4 if self.headers else 22)


@dataclass
class Stream:
    """A stream with one message for each subject."""

    config: dict[str, Any]
    messages: dict[int, Stored] = field(default_factory=dict)
    """By number, in order."""
    last: dict[str, int] = field(default_factory=dict)
    """Subject → number of its message."""
    last_seq: int = 0
    unsynced: list[int] = field(default_factory=list)
    """Numbers of the messages that the disk does not have yet."""

    @property
    def bytes(self) -> int:
        """Size of all messages."""
        return sum(message.size for message in self.messages.values())

    def put(self, subject: str, headers: bytes, data: bytes, now: float) -> int:
        """Stores a message; returns its number."""
        self.expire(now)
        self.last_seq += 1
        if (before := self.last.get(subject)) is not None:
            self.messages.pop(before, None)
        message = Stored(self.last_seq, subject, headers, data, now)
        self.messages[self.last_seq] = message
        self.last[subject] = self.last_seq
        self.unsynced.append(self.last_seq)
        limit = self.config.get("max_bytes") or -1
        while 0 <= limit < self.bytes and self.messages:
            self.drop(next(iter(self.messages)))
        return message.seq

    def drop(self, seq: int) -> None:
        """Removes a message."""
        message = self.messages.pop(seq)
        if self.last.get(message.subject) == seq:
            del self.last[message.subject]

    def expire(self, now: float) -> None:
        """Removes the messages that are too old."""
        age = (self.config.get("max_age") or 0) / 1e9
        while age and self.messages and next(iter(self.messages.values())).time + age <= now:
            self.drop(next(iter(self.messages)))

    def lose_unsynced(self) -> None:
        """Loses what the disk does not have. Values that these messages replaced are gone, too."""
        for seq in self.unsynced:
            if seq in self.messages:
                self.drop(seq)
        self.unsynced.clear()


class Cluster:
    """Servers that act as one, with the streams that they hold together."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.servers: list[Server] = []
        self.streams: dict[str, Stream] = {}
        self.has_leader = True
        """False: no server answers for streams."""
        self.disk_full = False
        self.loss = 0.0
        """Share of messages that are lost between server and subscriber."""
        self.names = 0

    def publish(self, origin: "Server", subject: str, reply: str, headers: bytes, data: bytes) -> int:
        """Passes a message to all subscriptions; returns how many there are, streams included."""
        count = 0
        for server in self.servers:
            if server is origin:
                count += server.deliver(subject, reply, headers, data)
            elif server.machine.alive and server.has_interest(subject):
                count += 1
                deliver = server.deliver_routed
                self.loop.call_later(
                    ROUTE_S, deliver, subject, reply, headers, data, context=server.machine.context
                )
        if subject.startswith("$") and self.has_leader:
            count += self._store(origin, subject, reply, headers, data)
        return count

    # -- streams ------------------------------------------------------------------------------------------------------

    def _store(self, origin: "Server", subject: str, reply: str, headers: bytes, data: bytes) -> int:
        if subject.startswith(API):
            return self._api(origin, subject.removeprefix(API), reply, data)
        for name, stream in self.streams.items():
            if any(matches(pattern, subject) for pattern in stream.config["subjects"]):
                answer = self._append(name, stream, subject, headers, data)
                if reply:
                    self.answer(origin, reply, b"", json.dumps(answer).encode())
                return 1
        return 0

    def _append(self, name: str, stream: Stream, subject: str, headers: bytes, data: bytes) -> dict[str, Any]:
        limit = stream.config.get("max_msg_size") or -1
        if 0 <= limit < len(headers) + len(data):
            return _error(400, 10054, "message size exceeds maximum allowed", stream=name)
        if self.disk_full:
            return _error(503, 10047, "insufficient storage resources available", stream=name)
        return {"stream": name, "seq": stream.put(subject, headers, data, self.loop.now)}

    def _api(self, origin: "Server", call: str, reply: str, data: bytes) -> int:
        kind, _, rest = call.partition(".")
        if kind == "DIRECT" and rest.startswith("GET."):
            name, _, subject = rest.removeprefix("GET.").partition(".")
            if name not in self.streams:
                return 0
            self._direct(origin, self.streams[name], subject, reply, data)
        elif kind == "STREAM":
            verb, _, name = rest.partition(".")
            answer = self._stream_call(verb, name, json.loads(data or b"{}"))
            if answer is None:
                return 0
            self.answer(origin, reply, b"", json.dumps(answer).encode())
        elif kind == "INFO":
            self.answer(origin, reply, b"", b'{"type":"io.nats.jetstream.api.v1.account_info_response","streams":1}')
        else:
            return 0
        return 1

    def _stream_call(self, verb: str, name: str, request: dict[str, Any]) -> dict[str, Any] | None:
        stream = self.streams.get(name)
        if verb == "CREATE":
            if stream is not None and stream.config != request:
                return _error(400, 10058, "stream name already in use with a different configuration")
            if stream is None:
                stream = self.streams[name] = Stream(request)
        elif stream is None:
            return _error(404, 10059, "stream not found")
        elif verb == "UPDATE":
            stream.config = request
        elif verb == "DELETE":
            del self.streams[name]
            return {"type": "io.nats.jetstream.api.v1.stream_delete_response", "success": True}
        elif verb == "PURGE":
            count = len(stream.messages)
            stream.messages.clear()
            stream.last.clear()
            return {"type": "io.nats.jetstream.api.v1.stream_purge_response", "success": True, "purged": count}
        elif verb != "INFO":
            return None
        stream.expire(self.loop.now)
        state = {
            "messages": len(stream.messages),
            "bytes": stream.bytes,
            "first_seq": next(iter(stream.messages), stream.last_seq + 1),
            "last_seq": stream.last_seq,
            "consumer_count": 0,
        }
        kind = "create" if verb == "CREATE" else "update" if verb == "UPDATE" else "info"
        return {
            "type": f"io.nats.jetstream.api.v1.stream_{kind}_response",
            "config": stream.config,
            "created": "2026-01-01T00:00:00Z",
            "state": state,
        }

    def _direct(self, origin: "Server", stream: Stream, subject: str, reply: str, data: bytes) -> None:
        stream.expire(self.loop.now)
        request = {"last_by_subj": subject} if subject else json.loads(data or b"{}")
        name = stream.config["name"]
        if (patterns := request.get("multi_last")) is not None:
            found = [one for one in stream.messages.values() if any(matches(p, one.subject) for p in patterns)]
            if not found:
                self.answer(origin, reply, _NOT_FOUND, b"")
                return
            for message in found[: request.get("batch") or None]:
                self.answer(origin, reply, _direct_headers(name, message), message.data)
            self.answer(origin, reply, _END_OF_BATCH, b"")
            return
        found_one = next(_selected(stream, request), None)
        if found_one is None:
            self.answer(origin, reply, _NOT_FOUND, b"")
        else:
            self.answer(origin, reply, _direct_headers(name, found_one), found_one.data)

    def answer(self, origin: "Server", reply: str, headers: bytes, data: bytes) -> None:
        """Sends an answer of the store to whoever subscribes to `reply`, after its disk or network."""
        if reply:
            send = self.publish_answer
            self.loop.call_later(ROUTE_S, send, origin, reply, headers, data, context=origin.machine.context)

    def publish_answer(self, origin: "Server", reply: str, headers: bytes, data: bytes) -> None:
        """Sends an answer of the store."""
        self.publish(origin, reply, "", headers, data)


def _error(code: int, number: int, text: str, **fields: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": number, "description": text}, **fields}


def _selected(stream: Stream, request: dict[str, Any]) -> Iterator[Stored]:
    """The messages that a direct request names, the wanted one first."""
    if (last := request.get("last_by_subj")) is not None:
        return (one for one in reversed(stream.messages.values()) if matches(last, one.subject))
    start = request.get("seq") or 0
    if (following := request.get("next_by_subj")) is not None:
        return (one for one in stream.messages.values() if one.seq >= start and matches(following, one.subject))
    return (one for one in stream.messages.values() if one.seq == start)


def _direct_headers(stream: str, message: Stored) -> bytes:
    own = message.headers.partition(b"\r\n")[2].rstrip(b"\r\n")
    lines = [
        b"NATS/1.0",
        *([own] if own else []),
        b"Nats-Stream: " + stream.encode(),
        b"Nats-Subject: " + message.subject.encode(),
        b"Nats-Sequence: %d" % message.seq,
        b"Nats-Time-Stamp: 2026-01-01T00:00:00Z",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Server:
    """One server of a cluster."""

    def __init__(self, cluster: Cluster, machine: Machine, host: str, port: int) -> None:
        self.cluster = cluster
        self.machine = machine
        self.host, self.port = host, port
        self.clients: dict[Connection, None] = {}
        self.numbers = 0
        cluster.names += 1
        self.id = f"SIM{cluster.names}"

    async def start(self) -> None:
        """Listens."""
        await self.cluster.loop.create_server(lambda: Connection(self), self.host, self.port)
        self.cluster.servers.append(self)

    def stopped(self) -> None:
        """Removes the server from the cluster, because its process was killed."""
        self.cluster.servers.remove(self)
        self.clients.clear()

    def has_interest(self, subject: str) -> bool:
        """Whether a client of this server subscribes to a subject."""
        return any(True for client in self.clients for _ in client.sids(subject))

    def deliver(self, subject: str, reply: str, headers: bytes, data: bytes) -> int:
        """Sends a message to this server's subscriptions; returns their number."""
        count, loss = 0, self.cluster.loss
        for client in list(self.clients):
            for sid in client.sids(subject):
                count += 1
                if not loss or not subject.startswith("tw.") or self.cluster.loop.random.random() >= loss:
                    client.send_message(subject, sid, reply, headers, data)
        return count

    def deliver_routed(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """As `deliver`, for a message from another server."""
        self.deliver(subject, reply, headers, data)


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._exact: dict[str, list[bytes]] = {}
        self._patterns: dict[bytes, str] = {}
        self._subjects: dict[bytes, str] = {}
        self._left: dict[bytes, int] = {}
        """Subscription → messages until it ends by itself."""
        self._message: tuple[str, str, int, int] | None = None
        """(subject, reply, bytes of headers, bytes in all) of a message that is being read."""
        self._options: dict[str, Any] = {}
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Greets the client."""
        self._transport = transport
        server = self._server
        server.numbers += 1
        info: dict[str, Any] = {
            "server_id": server.id,
            "server_name": server.id,
            "version": "2.11.0",
            "proto": 1,
            "host": server.host,
            "port": server.port,
            "headers": True,
            "max_payload": MAX_PAYLOAD,
            "jetstream": True,
            "client_id": server.numbers,
        }
        if len(server.cluster.servers) > 1:
            info["connect_urls"] = [f"{one.host}:{one.port}" for one in server.cluster.servers]
        transport.write(b"INFO " + json.dumps(info).encode() + b" \r\n")
        server.clients[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the client's subscriptions."""
        self._server.clients.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def pause_writing(self) -> None:
        """Begins to wait for a client that does not read."""
        loop = self._server.cluster.loop
        self._deadline = loop.call_later(WRITE_DEADLINE_S, self._slow_consumer)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        """Handles all whole operations."""
        buffer = self._buffer
        buffer += data
        while True:
            if self._message is not None:
                size = self._message[3]
                if len(buffer) < size + 2:
                    return
                payload = bytes(buffer[:size])
                del buffer[: size + 2]
                self._publish(payload)
                continue
            end = buffer.find(b"\r\n")
            if end < 0:
                return
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            self._operation(line)
            if self._transport.is_closing():
                return

    # -- operations ---------------------------------------------------------------------------------------------------

    def _operation(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb.upper():
            case b"PUB" | b"HPUB":
                fields = rest.split()
                with_headers = verb.upper() == b"HPUB"
                sizes = [int(one) for one in fields[-2 if with_headers else -1 :]]
                names = [one.decode() for one in fields[: -len(sizes)]]
                if sizes[-1] > MAX_PAYLOAD:
                    self._refuse("Maximum Payload Violation")
                    return
                self._message = names[0], names[1] if len(names) > 1 else "", sizes[0] if with_headers else 0, sizes[-1]
            case b"SUB":
                fields = rest.split()
                self._subscribe(fields[0].decode(), fields[-1])
            case b"UNSUB":
                sid, _, most = rest.partition(b" ")
                if most:
                    self._left[sid] = int(most)
                else:
                    self._unsubscribe(sid)
            case b"PING":
                self._transport.write(b"PONG\r\n")
            case b"CONNECT":
                self._options = json.loads(rest)
                if self._options.get("verbose"):
                    self._transport.write(b"+OK\r\n")
            case b"PONG" | b"+OK" | b"":
                pass
            case _:
                self._refuse("Unknown Protocol Operation")

    def _refuse(self, why: str) -> None:
        self._transport.write(f"-ERR '{why}'\r\n".encode())
        self._transport.close()

    def _subscribe(self, subject: str, sid: bytes) -> None:
        self._subjects[sid] = subject
        if "*" in subject or ">" in subject:
            self._patterns[sid] = subject
        else:
            self._exact.setdefault(subject, []).append(sid)

    def _unsubscribe(self, sid: bytes) -> None:
        subject = self._subjects.pop(sid, None)
        self._left.pop(sid, None)
        if subject is None or self._patterns.pop(sid, None) is not None:
            return
        self._exact[subject].remove(sid)
        if not self._exact[subject]:
            del self._exact[subject]

    def _publish(self, payload: bytes) -> None:
        assert self._message is not None
        (subject, reply, head, _), self._message = self._message, None
        headers, data = payload[:head], payload[head:]
        count = self._server.cluster.publish(self._server, subject, reply, headers, data)
        if not count and reply and self._options.get("no_responders"):
            for sid in self.sids(reply):
                self.send_message(reply, sid, "", _NO_RESPONDERS, b"")

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def sids(self, subject: str) -> Iterator[bytes]:
        """The subscriptions that match a subject."""
        yield from list(self._exact.get(subject, ()))
        for sid, pattern in list(self._patterns.items()):
            if matches(pattern, subject):
                yield sid

    def send_message(self, subject: str, sid: bytes, reply: str, headers: bytes, data: bytes) -> None:
        """Sends a message to one subscription."""
        if self._transport.is_closing():
            return
        names = f"{subject} {sid.decode()} {reply + ' ' if reply else ''}"
        if headers:
            head = f"HMSG {names}{len(headers)} {len(headers) + len(data)}\r\n".encode()
        else:
            head = f"MSG {names}{len(data)}\r\n".encode()
        self._transport.write(head + headers + data + b"\r\n")
        if sid in self._left:
            self._left[sid] -= 1
            if self._left[sid] <= 0:
                self._unsubscribe(sid)

    def _slow_consumer(self) -> None:
        self._transport.abort()
