"""Ports and addresses, which several commands use."""

import errno
import socket

import pytest

from services.cli.common import reachable_host, reserve_ports


def test_ports_are_free_and_reserved() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is in use; .* with --port"):
            reserve_ports("127.0.0.1", port, 1)
    found = reserve_ports("127.0.0.1", 0, 3)
    assert len(set(found)) == 3
    for port in found:  # others do not get it by chance, and its server does
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()


def test_port_of_node_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr("socket.socket.bind", bind)
    with pytest.raises(OSError, match=r"9100 .* is in use .*node_exporter.* with --metrics-port"):
        reserve_ports("127.0.0.1", 9100, 1, flags=("--metrics-host", "--metrics-port"))


def test_listener_url_has_a_reachable_host() -> None:
    for host, expected in (
        ("0.0.0.0", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
    ):
        assert reachable_host(host) == expected
