"""A model of nats-server: the protocol of clients, at-most-once delivery, routes, and the streams
of buckets.

`tests/simulation/test_simulation_nats.py` runs the same cases on this model and on real servers.

A server is a simulated process: while it is frozen it reads and answers nothing; when it is killed
its clients' connections end. Servers of a `Cluster` are joined by routes, which are connections of
the simulated network. Who leads a stream is decided for all servers at once, by who reaches whom;
everything else a server learns from its connections.

Left out, because no service uses it: queue groups, consumers, message ids, accounts and users, TLS,
lame duck mode.
"""

import asyncio
import json

from simulation import nats_streams
from simulation.loop import Machine
from simulation.nats_cluster import Cluster, Group
from simulation.nats_connections import Connection, Route, Subscription, Subscriptions
from simulation.nats_streams import API

__all__ = ["Cluster", "Server"]

ROUTE_PORT = 6222
ROUTE_RETRY_S = 1.0
STORE_S = 200e-6
"""Delay of an answer of the store."""
_TEMPORARILY_UNAVAILABLE = nats_streams.error(
    503, 10008, "JetStream system temporarily unavailable"
)


class Server:
    """One server of a cluster."""

    def __init__(self, cluster: Cluster, machine: Machine, host: str, port: int) -> None:
        self.cluster = cluster
        self.machine = machine
        self.host, self.port = host, port
        self.clients: dict[Connection, None] = {}
        self.subscriptions = Subscriptions()
        self.routes: dict[str, Route] = {}
        """Host of the other server → the route to it."""
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

    # -- routes

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

    def subscribe(self, subject: str, subscriber: Subscription) -> None:
        """Adds a client's subscription."""
        if self.subscriptions.add(subject, subscriber):
            for route in self.routes.values():
                route.send("+", subject)

    def unsubscribe(self, subject: str, subscriber: Subscription) -> None:
        """Removes a client's subscription."""
        if self.subscriptions.remove(subject, subscriber):
            for route in self.routes.values():
                route.send("-", subject)

    # -- messages

    def publish(
        self,
        subject: str,
        reply: str,
        headers: bytes,
        data: bytes,
        source: Connection | None = None,
    ) -> int:
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

    def deliver(
        self,
        subject: str,
        reply: str,
        headers: bytes,
        data: bytes,
        source: Connection | None = None,
    ) -> int:
        """Sends a message to this server's subscriptions; returns their number."""
        count, cluster = 0, self.cluster
        for subscription in self.subscriptions.find(subject):
            if subscription.client is source and not source.echoes:
                continue
            count += 1
            if not cluster.losses or not cluster.loses(subject):
                subscription.client.send_message(subject, subscription, reply, headers, data)
        return count

    def take(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Handles a message from another server."""
        self.deliver(subject, reply, headers, data)
        group = self.cluster.group_of(subject) if subject.startswith("$") else None
        if group is not None and group.leader == self.host:
            self._append(group, subject, reply, headers, data)

    # -- streams

    def _append(self, group: Group, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Stores a message as the stream's leader. Without a majority nobody answers."""
        stream, cluster = group.stream, self.cluster
        assert stream is not None
        if not cluster.has_majority(group, self.host):
            return
        name = {"stream": stream.config["name"]}
        if (refusal := stream.refusal(subject, headers, data)) is not None:
            answer = refusal | name | {"seq": 0}
        else:
            stream.failed |= cluster.disk_full and stream.storage == "file"
            if (
                stream.failed
            ):  # nats-server 2.15 stores nothing and answers nothing, until it is started again
                return
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
            self._answer(
                reply,
                b"",
                json.dumps(nats_streams.answer(verb) | _TEMPORARILY_UNAVAILABLE).encode(),
            )
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
        if cluster.has_majority(cluster.everyone, self.host) or cluster.has_majority(
            group, self.host
        ):
            answer = cluster.call(verb, name, data)
            if answer is not None:
                self._answer(reply, b"", json.dumps(answer).encode())

    def _direct(self, request: str, reply: str, data: bytes) -> int:
        """Passes a request for stored messages to any server that has the stream."""
        name, _, subject = request.partition(".")
        group = self.cluster.groups.get(name)
        if group is None or group.stream is None or not group.stream.config.get("allow_direct"):
            return 0
        now = self.cluster.loop.now
        able = [
            host
            for host in group.peers
            if (host == self.host or host in self.routes)
            and (host == group.leader or now >= group.direct_from[host])
        ]
        if not able:
            return 0
        host = (
            able[0] if len(able) == 1 else able[int(self.cluster.loop.random.random() * len(able))]
        )
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
        """Sends an answer of the store to the subscribers of `reply`, after its disk or network."""
        if reply:
            loop = self.cluster.loop
            loop.call_later(
                delay_s, self.publish, reply, "", headers, data, context=self.machine.context
            )
