"""A cluster of modelled NATS servers: who runs, who leads which stream, and the calls that make and
change streams."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation import nats_streams
from simulation.loop import SimLoop
from simulation.nats_streams import Json, Stream, matches

if TYPE_CHECKING:
    from simulation.nats_server import Server

LAG_S = 2e-3
"""Time within which the other servers of a stream have what its leader stored."""
BEAT_S = 1.0
ELECTION_S = (4.0, 9.0)
"""Range of the time after which servers that miss a leader have another one."""
LOST_QUORUM_S = 10.0
"""After this time without a majority a leader is none any more."""
HISTORY_S = 120.0
"""How long servers that are late still have what was replaced."""
DIRECT_S = 2.0
"""Time after which a server that does not lead a stream answers direct requests for it."""


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
    direct_from: dict[str, float] = field(default_factory=dict)
    """When servers that do not lead answer direct requests."""


class Cluster:
    """Servers that act as one, with the streams that they hold together."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        jetstream: bool = True,
        write_deadline_s: float = 5.0,
        ping_s: float = 20.0,
    ) -> None:
        """
        Args:
            write_deadline_s: a client that takes nothing for this time is a slow consumer, and is
                disconnected.
            ping_s: interval of the pings to clients and between servers. The third without an
            answer ends a connection.
        """
        self.loop = loop
        self.jetstream = jetstream
        self.write_deadline_s = write_deadline_s
        self.ping_s = ping_s
        self.servers: dict[str, Server] = {}
        """Running servers, by host."""
        self.groups: dict[str, Group] = {}
        """The streams, by name."""
        self.everyone = Group([], None, None)
        self.disk_full = False
        """A stream in files that is written to meanwhile takes nothing more, until its server is
        started again."""
        self.hangs = False
        """Whether streams take no writes and no calls, without an answer: a majority is lost, which
        nobody noticed."""
        self.losses: list[tuple[str, float]] = []
        """(beginning of subjects, share) of messages that are lost between server and
        subscriber."""
        self.names = 0
        self._beating = False

    def loses(self, subject: str) -> bool:
        """Draws whether a message is lost on its way to a subscriber."""
        random = self.loop.random.random
        return any(
            f"{subject}.".startswith(beginning) and random() < share
            for beginning, share in self.losses
        )

    # -- servers

    def join(self, server: "Server") -> None:
        """Takes a server in that starts."""
        self.servers[server.host] = server
        if server.host not in self.everyone.peers:
            self.everyone.peers.append(server.host)
        for group in self._all_groups():
            if group.peers == [server.host]:
                group.leader = server.host
            group.direct_from[server.host] = self.loop.now + DIRECT_S
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
            assert group.stream is not None
            if group.leader == server.host:
                group.stream.failed = False
            if group.peers == [server.host]:
                group.leader = None
                if group.stream.storage == "memory":
                    if len(self.everyone.peers) == 1:
                        del self.groups[name]
                    else:
                        group.stream = Stream(group.stream.config)

    def lose_writes(self, since_s: float) -> None:
        """Loses the last writes of streams on a single server: its machine failed before the disk
        had them."""
        for group in self.groups.values():
            if len(group.peers) == 1 and group.stream is not None:
                group.stream.lose_after(self.loop.now - since_s)

    def empty(self, name: str) -> None:
        """Loses all messages of a stream."""
        stream = self.groups[name].stream
        assert stream is not None
        stream.purge(">", self.loop.now)

    def remove(self, name: str) -> None:
        """Loses a stream."""
        del self.groups[name]

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
            peer
            for peer in group.peers
            if self._is_up(peer)
            and (peer == host or not network.is_cut(machine, self.servers[peer].machine))
        ]

    def has_majority(self, group: Group, host: str | None) -> bool:
        """Whether a server reaches most servers of a group."""
        return not self.hangs and len(self.reached(group, host)) > len(group.peers) // 2

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
            able = [
                host
                for host in group.peers
                if self.has_majority(group, host) and host not in group.late_since
            ]
            if able and now >= group.election_at and len(group.peers) > 1:
                group.leader = able[int(random.random() * len(able))]
                group.missed_at = None
            elif not able and now >= group.missed_at + LOST_QUORUM_S:
                group.leader = None

    # -- streams

    def group_of(self, subject: str) -> Group | None:
        """The stream that stores messages of a subject."""
        for group in self.groups.values():
            if group.stream is not None and any(
                matches(pattern, subject) for pattern in group.stream.config["subjects"]
            ):
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
        """Makes a call of JetStream's interface for streams; returns None for one that does not
        exist."""
        if verb not in ("CREATE", "UPDATE", "DELETE", "PURGE", "INFO", "MSG.DELETE"):
            return None
        answer = nats_streams.answer(verb)
        try:
            request: Json = (
                json.loads(data) if data and verb in ("CREATE", "UPDATE", "PURGE") else {}
            )
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
            group = self.groups[name] = self._placed(
                Stream(request, HISTORY_S if copies > 1 else 0.0), copies
            )
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
            return answer | {
                "success": True,
                "purged": stream.purge(request.get("filter") or ">", now),
            }
        return answer | nats_streams.description(stream, now)

    def _placed(self, stream: Stream, copies: int) -> Group:
        up = [host for host in self.everyone.peers if self._is_up(host)]
        peers = self.loop.random.sample(up, min(copies, len(up)))
        return Group(
            peers, stream, peers[0], direct_from=dict.fromkeys(peers, self.loop.now + DIRECT_S)
        )

    def _refusal(self, name: str, request: Json, group: Group | None, verb: str) -> Json | None:
        if request.get("name") != name:
            return nats_streams.error(400, 10056, "stream name in subject does not match request")
        if (request.get("num_replicas") or 1) > len(self.everyone.peers):
            if len(self.everyone.peers) == 1:
                return nats_streams.error(
                    500, 10074, "replicas > 1 not supported in non-clustered mode"
                )
            return nats_streams.error(
                400, 10005, "no suitable peers for placement, insufficient servers available"
            )
        if (request.get("max_bytes") or 0) > nats_streams.STORE_BYTES:
            return nats_streams.error(500, 10047, "insufficient storage resources available")
        if group is None or group.stream is None:
            if verb == "UPDATE":
                return nats_streams.error(404, 10059, "stream not found")
            taken = [
                other.stream.config["subjects"]
                for other in self.groups.values()
                if other.stream is not None
            ]
            if any(subjects == request["subjects"] for subjects in taken):
                return nats_streams.error(400, 10065, "subjects overlap with an existing stream")
        elif verb == "UPDATE":
            return nats_streams.change_refusal(group.stream.config, request)
        elif group.stream.config != request:
            return nats_streams.error(
                400, 10058, "stream name already in use with a different configuration"
            )
        return None
