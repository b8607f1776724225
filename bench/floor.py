"""What the client of a sequence costs by itself: a server of some lines that answers at once, in a process of its own.

It reads a request to its end and writes a canned stream, so that a time to first token measured against it is the
client's send, the kernel's copies and two wake-ups. What a serving path adds is what it takes beyond that.
"""

import multiprocessing
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench import sequences
from bench.apis import APIS
from bench.client import Target
from bench.measuring import Site
from bench.rows import Row
from bench.stub import LAST_CHUNK, STREAM_HEAD, chunk, closing, delta, opening

READ_BYTES = 256 * 1024
TOKENS = 16
THREADS = 4


async def measure_floor(requests: int) -> list[Row]:
    """Time to first token of small and large prompts, on kept and fresh connections, where nothing is done for it."""
    rows: list[Row] = []
    with canned_server() as url:
        site = Site(target=Target.of(url), api=APIS["messages"], model="canned")
        async for row in sequences.ttft(site, ["small", "large"], ["tail"], ("keepalive", "fresh"), requests):
            rows.append(row)
    return rows


@contextmanager
def canned_server() -> Iterator[str]:
    """Base URL of a server that gives the same Messages stream to every request."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(listening,), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            process.kill()  # it has this process's handlers, which would take a milder word for their own
            process.join()


def _serve(listening: socket.socket) -> None:
    answer = STREAM_HEAD + chunk(opening() + delta("word "))
    rest = chunk(delta("word ") * (TOKENS - 1) + closing(TOKENS)) + LAST_CHUNK

    def accept() -> None:
        while True:
            _converse(listening.accept()[0], answer, rest)

    for _ in range(THREADS):  # made ahead: a thread's start is not the client's cost
        threading.Thread(target=accept, daemon=True).start()
    accept()


def _converse(connection: socket.socket, first: bytes, rest: bytes) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        data = b""
        while received := connection.recv(READ_BYTES):
            data += received
            head, blank, body = data.partition(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE) if blank else None
            if found and len(body) == int(found[1]):
                connection.sendall(first)
                connection.sendall(rest)
                data = b""
