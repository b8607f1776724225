"""Servers: what a URL says, and in which order they are tried."""

import pytest

from services.runtime.nats_servers import NatsServer, Servers, parse_url


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("nats://h", NatsServer("h", 4222)),
        ("h:1", NatsServer("h", 1)),
        (" nats://h:1 ", NatsServer("h", 1)),
        ("tls://h:1", NatsServer("h", 1, tls=True)),
        ("nats://[::1]:5", NatsServer("::1", 5)),
        ("nats://me:p%40ss@h", NatsServer("h", 4222, user="me", password="p@ss")),
        ("nats://token@h", NatsServer("h", 4222, user="token")),
    ],
)
def test_a_url_names_a_server(url: str, server: NatsServer) -> None:
    assert parse_url(url) == server


@pytest.mark.parametrize("url", ["ws://h", "http://h", "nats://", "nats://h:x", "nats://h:99999", ""])
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValueError):
        parse_url(url)


def test_each_round_tries_every_server_in_the_order_that_chance_gives() -> None:
    rounds: list[int] = []

    def shuffle(servers: list[NatsServer]) -> None:
        rounds.append(len(servers))
        servers.sort(key=lambda server: server.host, reverse=len(rounds) % 2 == 1)

    servers = Servers(["nats://b", "nats://a"], shuffle)
    tried = [servers.next() for _ in range(5)]
    assert [(server.host, anew) for server, anew in tried] == [
        ("a", True),
        ("b", False),
        ("b", True),
        ("a", False),
        ("a", True),
    ]


def test_a_clusters_servers_are_reached_as_the_one_that_told_of_them() -> None:
    servers = Servers(["tls://me:secret@nats.example:1"], lambda _: None)
    teller, _ = servers.next()
    servers.learn(["10.0.0.1:1", "10.0.0.2:1", "[::1]:1", "nats.example:1", "nonsense:port"], teller)
    servers.learn(["10.0.0.1:1"], teller)
    found = [servers.next() for _ in range(4)]
    assert [anew for _, anew in found] == [True, False, False, False]
    assert {server.host for server, _ in found} == {"nats.example", "10.0.0.1", "10.0.0.2", "::1"}
    for server, _ in found:
        assert server.tls
        assert (server.user, server.password) == ("me", "secret")
        assert server.certificate_host == "nats.example"
