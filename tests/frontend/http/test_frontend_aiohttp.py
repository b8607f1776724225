"""What `http.server` and `http.sse` rely on in aiohttp beyond its documented API. A failure here
names what changed."""

import inspect

import pytest
from aiohttp import ClientSession, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong

from services.frontend.http.server import MAX_HEADER_BYTES, MAX_URL_BYTES


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (web.RequestHandler.handle_error, ["self", "request", "status", "exc", "message"]),
        (web.RequestHandler.finish_response, ["self", "request", "resp", "start_time"]),
        (web.RequestHandler.force_close, ["self"]),
        (web.RequestHandler.set_parser, ["self", "parser", "data_received_cb"]),
        (web.StreamResponse.prepare, ["self", "request"]),
        (web.StreamResponse.write, ["self", "data"]),
        (web.Response.write_eof, ["self", "data"]),
        (AbstractStreamWriter.drain, ["self"]),
    ],
)
def test_aiohttp_has_the_methods_that_we_override_or_call(
    method: object, parameters: list[str]
) -> None:
    assert callable(method)
    assert list(inspect.signature(method).parameters) == parameters


async def test_server_of_a_runner_makes_requests_and_connections() -> None:
    runner = web.AppRunner(web.Application(), handler_cancellation=True)
    await runner.setup()
    try:
        server = runner.server
        assert server is not None
        names = list(inspect.signature(server.request_factory).parameters)
        assert names[:5] == ["message", "payload", "protocol", "writer", "task"]
        assert server.handler_cancellation
        assert isinstance(server(), web.RequestHandler)
    finally:
        await runner.cleanup()


async def test_head_is_sent_with_the_first_bytes() -> None:
    """Why `EventStream` is a `Response`: one write for both."""
    writes: list[list[bytes]] = []

    class Counted(web.Response):
        async def write(self, data: bytes | bytearray | memoryview) -> None:
            request = requests[0]
            assert request.writer.output_size == 0
            await super().write(data)
            assert request.writer.output_size > len(data)
            writes.append([bytes(data)])

    requests: list[web.Request] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        response = Counted()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"first")
        return response

    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with (
            ClientSession() as http,
            http.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response,
        ):
            assert await response.read() == b"first"
    finally:
        await runner.cleanup()
    assert writes == [[b"first"]]


def test_error_of_a_long_line_has_its_limit() -> None:
    """`Connection.handle_error` tells a URL from a header by it."""
    assert LineTooLong(b"GET /aaa", 7).args[1] == 7
    assert MAX_URL_BYTES != MAX_HEADER_BYTES


def test_request_writer_counts_sent_bytes() -> None:
    assert AbstractStreamWriter.output_size == 0
