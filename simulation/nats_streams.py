"""The streams of a model of nats-server: what key-value buckets use of JetStream.

`Stream` is the store; `answer_api` and `answer_direct` are what a server replies to requests about
it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MIN_OVERHEAD = {"file": 30, "memory": 16}
"""Bytes that nats-server's stores count for each message, beside its subject, headers and data."""
LENGTH_OF_HEADERS = {"file": 4, "memory": 0}
STORE_BYTES = 1 << 30
"""What a server lends to all its streams."""
FOREVER = float("inf")
API = "$JS.API."
NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
NO_RESULTS = b"NATS/1.0 404 No Results\r\n\r\n"
EMPTY_REQUEST = b"NATS/1.0 408 Empty Request\r\n\r\n"
MALFORMED_REQUEST = b"NATS/1.0 408 Malformed Request\r\n\r\n"
_TYPES = "io.nats.jetstream.api.v1.stream_"

Json = dict[str, Any]


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a subscription's pattern (`*`: one token, `>`: all that follow)."""
    if "*" not in pattern and ">" not in pattern:
        return pattern == subject
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
    until: float = FOREVER
    """When it was removed."""

    @property
    def own_headers(self) -> bytes:
        """Its header lines, without the first and the last."""
        return self.headers.partition(b"\r\n")[2].rstrip(b"\r\n")


@dataclass
class Stream:
    """A stream with at most one message for each subject."""

    config: Json
    keeps_removed_s: float = 0.0
    """How long removed messages are kept for `at`: a server that is late still has them."""
    messages: dict[int, Stored] = field(default_factory=dict)
    """Number → message, in order."""
    last: dict[str, int] = field(default_factory=dict)
    """Subject → number of its message."""
    last_seq: int = 0
    purged: bool = False
    """Whether it was ever emptied."""
    failed: bool = False
    """Whether a write failed, because the disk was full."""
    used_bytes: int = 0
    _removed: list[Stored] = field(default_factory=list)

    @property
    def storage(self) -> str:
        """`file` or `memory`."""
        return str(self.config.get("storage", "file"))

    def size(self, message: Stored) -> int:
        """Bytes that the store counts for a message."""
        without_headers = (
            len(message.subject)
            + len(message.headers)
            + len(message.data)
            + MIN_OVERHEAD[self.storage]
        )
        return without_headers + (LENGTH_OF_HEADERS[self.storage] if message.headers else 0)

    def put(self, subject: str, headers: bytes, data: bytes, now: float) -> int:
        """Stores a message; returns its number."""
        self.expire(now)
        self.last_seq += 1
        if (before := self.last.get(subject)) is not None:
            self.drop(before, now)
        message = Stored(self.last_seq, subject, headers, data, now)
        self.messages[self.last_seq] = message
        self.last[subject] = self.last_seq
        self.used_bytes += self.size(message)
        self.fit(now)
        return message.seq

    def fit(self, now: float) -> None:
        """Removes the oldest messages until the others fit the limit."""
        limit = self.config.get("max_bytes") or -1
        while 0 <= limit < self.used_bytes:
            self.drop(next(iter(self.messages)), now)

    def drop(self, seq: int, now: float) -> None:
        """Removes a message."""
        message = self.messages.pop(seq)
        self.used_bytes -= self.size(message)
        if self.last.get(message.subject) == seq:
            del self.last[message.subject]
        if self.keeps_removed_s:
            message.until = now
            self._removed = [
                message for message in self._removed if message.until > now - self.keeps_removed_s
            ] + [message]

    def expire(self, now: float) -> None:
        """Removes the messages that are too old."""
        age = (self.config.get("max_age") or 0) / 1e9
        while age and self.messages and next(iter(self.messages.values())).time + age <= now:
            self.drop(next(iter(self.messages)), now)

    def purge(self, pattern: str, now: float) -> int:
        """Removes the messages with a matching subject; returns their number."""
        self.purged |= pattern == ">"
        removed = [
            message.seq for message in self.messages.values() if matches(pattern, message.subject)
        ]
        for seq in removed:
            self.drop(seq, now)
        return len(removed)

    def lose_after(self, time: float) -> None:
        """Loses the messages that were stored after a time. Values that they replaced are gone,
        too."""
        for seq in [message.seq for message in self.messages.values() if message.time > time]:
            self.drop(seq, time)
            self.last_seq = min(self.last_seq, seq - 1)

    def at(self, time: float) -> list[Stored]:
        """The messages as they were at an earlier time, by number."""
        there = [message for message in self.messages.values() if message.time <= time]
        late = [message for message in self._removed if message.time <= time < message.until]
        return sorted(late + there, key=lambda message: message.seq) if late else there

    def refusal(self, subject: str, headers: bytes, data: bytes) -> Json | None:
        """The error with which the stream refuses a message."""
        limit = self.config.get("max_msg_size") or -1
        if 0 <= limit < len(headers) + len(data):
            return error(400, 10054, "message size exceeds maximum allowed")
        for name, last in (
            (b"Nats-Expected-Last-Subject-Sequence", self.last.get(subject, 0)),
            (b"Nats-Expected-Last-Sequence", self.last_seq),
        ):
            expected = header(headers, name)
            if expected is not None and int(expected) != last:
                return error(400, 10071, f"wrong last sequence: {last}")
        if header(headers, b"Nats-Rollup") is not None and not self.config.get("allow_rollup_hdrs"):
            return error(500, 10111, "rollup not permitted")
        return None


def header(headers: bytes, name: bytes) -> bytes | None:
    """The value of a header; None if it is not there."""
    for line in headers.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return None


def error(code: int, number: int, text: str) -> Json:
    """An error of JetStream, as a member of an answer."""
    return {"error": {"code": code, "err_code": number, "description": text}}


def change_refusal(old: Json, new: Json) -> Json | None:
    """The error with which a stream refuses a new configuration."""
    if (old.get("storage") or "file") != (new.get("storage") or "file"):
        return error(500, 10052, "stream configuration update can not change storage type")
    if old.get("deny_delete") and not new.get("deny_delete"):
        return error(500, 10052, "stream configuration update can not cancel deny message deletes")
    return None


def description(stream: Stream, now: float) -> Json:
    """What the answer to a call that makes, changes or describes a stream has about it."""
    stream.expire(now)
    state = {
        "messages": len(stream.messages),
        "bytes": stream.used_bytes,
        "first_seq": next(
            iter(stream.messages), stream.last_seq + 1 if stream.last_seq or stream.purged else 0
        ),
        "last_seq": stream.last_seq,
        "consumer_count": 0,
    }
    return {"config": stream.config, "created": "2026-01-01T00:00:00Z", "state": state}


def answer(verb: str) -> Json:
    """The beginning of the answer to a call."""
    return {"type": f"{_TYPES}{verb.lower().replace('.', '_')}_response"}


def direct_answers(
    stream: Stream, subject: str, data: bytes, view: list[Stored]
) -> Iterator[tuple[bytes, bytes]]:
    """Yields headers and data of the answers to a direct request.

    `subject`: the last tokens of the request's own subject, for the last message there. `view`: the
    messages that the answering server has.
    """
    if subject:
        request: Json = {"last_by_subj": subject}
    else:
        try:
            request = json.loads(data) if data else {}
        except ValueError:
            yield MALFORMED_REQUEST, b""
            return
    name = stream.config["name"]
    if patterns := request.get("multi_last"):
        yield from _batch(stream, name, patterns, request.get("batch") or len(view), view)
    elif not any(request.get(member) for member in ("seq", "last_by_subj", "next_by_subj")):
        yield EMPTY_REQUEST, b""
    elif (found := next(_selected(request, view), None)) is None:
        yield NOT_FOUND, b""
    else:
        yield _direct_headers(name, found), found.data


def _selected(request: Json, view: list[Stored]) -> Iterator[Stored]:
    """The messages that a direct request names, the wanted one first."""
    if last := request.get("last_by_subj"):
        return (message for message in reversed(view) if matches(last, message.subject))
    start = request.get("seq") or 0
    if following := request.get("next_by_subj"):
        return (
            message
            for message in view
            if message.seq >= start and matches(following, message.subject)
        )
    return (message for message in view if message.seq == start)


def _batch(
    stream: Stream, name: str, patterns: list[str], most: int, view: list[Stored]
) -> Iterator[tuple[bytes, bytes]]:
    quick = set(patterns)  # thousands of them, most end with a star
    slow = [pattern for pattern in quick if "*" in pattern.removesuffix(".*") or ">" in pattern]

    def wanted(subject: str) -> bool:
        parent = subject.rpartition(".")[0]
        return (
            subject in quick
            or f"{parent}.*" in quick
            or any(matches(pattern, subject) for pattern in slow)
        )

    found = [message for message in view if wanted(message.subject)]
    if not found:
        yield NO_RESULTS, b""
        return
    last = 0
    for number, message in enumerate(found[:most]):
        pending = len(found) - number - 1
        yield (
            _direct_headers(
                name, message, b"Nats-Num-Pending: %d" % pending, b"Nats-Last-Sequence: %d" % last
            ),
            message.data,
        )
        last = message.seq
    end = (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n"
        b"Nats-UpTo-Sequence: %d\r\n\r\n"
    )
    yield end % (max(len(found) - most, 0), last, stream.last_seq), b""


def _direct_headers(stream: str, message: Stored, *more: bytes) -> bytes:
    lines = [
        b"NATS/1.0",
        *([message.own_headers] if message.own_headers else []),
        b"Nats-Stream: " + stream.encode(),
        b"Nats-Subject: " + message.subject.encode(),
        b"Nats-Sequence: %d" % message.seq,
        b"Nats-Time-Stamp: 2026-01-01T00:00:00Z",
        *more,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"
