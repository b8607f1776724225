"""The connections of a modelled NATS server: of clients, which speak the protocol of NATS, and to
other servers."""

import asyncio
import json
import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulation.nats_streams import Json, matches

if TYPE_CHECKING:
    from simulation.nats_server import Server

MAX_PAYLOAD = 8 * 1024 * 1024
MAX_LINE = 4096
MAX_PENDING = 64 * 1024 * 1024
"""A client that has not taken this many bytes is a slow consumer, and is disconnected."""


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
        subscribers = self._table(subject).setdefault(subject, {})
        subscribers[subscriber] = None
        return len(subscribers) == 1

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


class Route(asyncio.Protocol):
    """A connection to another server. Each operation is a length and a marshalled tuple."""

    def __init__(self, server: "Server") -> None:
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
                for subject in server.subscriptions.subjects():  # from here on it gets what changes
                    self.send("+", subject)
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

    def __init__(self, server: "Server") -> None:
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

    # -- asyncio.Protocol

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
        self._deadline = self._server.cluster.loop.call_later(
            self._server.cluster.write_deadline_s, self._overdue
        )

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

    # -- operations

    def _operation(self, line: bytes) -> None:
        """Handles an operation. For a message, `line` is only its first line. Raises ValueError if
        it is malformed."""
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
                self._options = {"verbose": True, "pedantic": True, "echo": True} | json.loads(
                    fields[0]
                )
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
        if self._options.get("pedantic") and not (
            _is_valid(subject) and "*" not in subject and ">" not in subject
        ):
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
        if sid in self._subscriptions:
            return
        if not _is_valid(subject) or ">" in subject.split(".")[:-1]:
            self._write(b"-ERR 'Invalid Subject'\r\n")
        else:
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
        return (
            subscription
            for subscription in self._subscriptions.values()
            if matches(subscription.subject, subject)
        )

    def send_message(
        self, subject: str, subscription: Subscription, reply: str, headers: bytes, data: bytes
    ) -> None:
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
