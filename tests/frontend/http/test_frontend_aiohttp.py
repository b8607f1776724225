"""What `http.server` and `http.sse` rely on in aiohttp beyond its documented API. A failure here
names what changed."""

import inspect

import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter


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


def test_request_writer_counts_sent_bytes() -> None:
    assert AbstractStreamWriter.output_size == 0
