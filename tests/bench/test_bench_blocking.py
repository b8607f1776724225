"""The client of sequences: against servers of some lines."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.apis import APIS
from bench.blocking import SequenceClient
from bench.client import Target
from bench.floor import TOKENS, canned_server

API = APIS["messages"]


@contextmanager
def says(answer: bytes, *, close: bool = True) -> Iterator[Target]:
    """A server that reads once, sends `answer` and closes, or stays silent."""
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if not close:
                    gone.wait()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Target("127.0.0.1", int(listening.getsockname()[1]))
        gone.set()
        thread.join()


@pytest.mark.parametrize("mode", ["keepalive", "fresh"])
def test_a_sequence_of_answers(mode: str) -> None:
    with canned_server() as url:
        client = SequenceClient(Target.of(url), API, mode)  # type: ignore[arg-type]
        client.warm()
        done = [client.exchange(b"x" * 300_000) for _ in range(3)]
        client.close()
    for exchange in done:
        assert exchange.finished, exchange.error
        assert (exchange.outputs, exchange.status) == (TOKENS, 200)
        assert exchange.due <= exchange.sent <= exchange.first_byte <= exchange.reads[0][0] <= exchange.ended


def test_a_refusal_is_a_result() -> None:
    with says(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\noh n") as target:
        exchange = SequenceClient(target, API).exchange(b"{}")
    assert (exchange.finished, exchange.error) == (False, "status 400: oh n")


def test_an_answer_that_is_cut_off_is_a_result() -> None:
    with says(b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{") as target:
        exchange = SequenceClient(target, API).exchange(b"{}")
    assert exchange.error is not None
    assert "mid-response" in exchange.error


def test_silence_is_a_result() -> None:
    with says(b"", close=False) as target:
        exchange = SequenceClient(target, API, timeout_s=0.05).exchange(b"{}")
    assert exchange.error == "nothing for 0.05 s"


def test_nobody_there_is_a_result() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        exchange = SequenceClient(Target("127.0.0.1", int(unused.getsockname()[1])), API).exchange(b"{}")
    assert exchange.error is not None
    assert "ConnectionRefused" in exchange.error
