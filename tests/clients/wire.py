"""A recording proxy between a client and Turnwire, for HTTP and for the WebSocket of Responses. It
changes nothing."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from multidict import CIMultiDict, CIMultiDictProxy

from turnwire_tools.clients.shared import SseParser

TURNS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
_HOP = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "upgrade"}
) | {"accept-encoding"}


@dataclass
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: Any
    """Decoded JSON; None where there is none. Over a WebSocket: one `response.create`."""
    status: int = 0
    """0: no answer has begun. A WebSocket's requests have 101."""
    events: list[tuple[str, Any]] = field(default_factory=list)
    """(name, decoded data) of a stream's events."""
    document: Any = None
    """An answer in one piece."""
    whole: bool = False
    """The answer was read to its end."""

    @property
    def over_socket(self) -> bool:
        return self.status == 101


class Recorder:
    """The proxy. `async with Recorder(url) as wire`: clients use `wire.url`."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.url = ""
        self.exchanges: list[Exchange] = []
        self.sockets = 0
        """WebSockets that were opened."""

    @property
    def turns(self) -> list[Exchange]:
        """Requests for an answer of the model, in order."""
        return [one for one in self.exchanges if one.path in TURNS and one.method != "GET"]

    async def __aenter__(self) -> "Recorder":
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in _HOP)
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._socket(request, headers)
        data = await request.read()
        body = json.loads(data) if data else None
        exchange = self._add(Exchange(request.method, request.path, request.headers, body))
        async with self._http.request(
            request.method, self.upstream + request.path_qs, data=data or None, headers=headers
        ) as answer:
            exchange.status = answer.status
            passed = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in _HOP)
            response = web.StreamResponse(status=answer.status, headers=passed)
            await response.prepare(request)
            events, whole = SseParser(), b""
            streamed = answer.content_type == "text/event-stream"
            async for chunk in answer.content.iter_any():
                if streamed:
                    exchange.events += events.feed(chunk)
                else:
                    whole += chunk
                await response.write(chunk)
            if not streamed and answer.content_type == "application/json":
                exchange.document = json.loads(whole)
            exchange.whole = True
            with contextlib.suppress(ConnectionError):  # a client may close before the end
                await response.write_eof()
        return response

    async def _socket(self, request: web.Request, headers: CIMultiDict[str]) -> web.StreamResponse:
        for name in [name for name in headers if name.lower().startswith("sec-websocket")]:
            headers.popall(name, None)
        try:
            upstream = await self._http.ws_connect(
                self.upstream + request.path_qs, headers=headers, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            self._add(Exchange("GET", request.path, request.headers, None, status=error.status))
            return web.Response(status=error.status)
        self.sockets += 1
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        current: list[Exchange] = []

        async def down() -> None:
            async for message in upstream:
                if message.type is not WSMsgType.TEXT:
                    break
                data = json.loads(message.data)
                if current:
                    current[-1].events.append((data.get("type", ""), data))
                    current[-1].whole = data.get("type") in _ENDS
                await client.send_str(message.data)
            await client.close()

        reading = asyncio.create_task(down())
        async for message in client:
            if message.type is not WSMsgType.TEXT:
                break
            body = json.loads(message.data)
            current.append(self._add(Exchange("POST", request.path, request.headers, body, 101)))
            await upstream.send_str(message.data)
        await upstream.close()
        await reading
        return client

    def _add(self, exchange: Exchange) -> Exchange:
        self.exchanges.append(exchange)
        return exchange


_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def turn_id(exchange: Exchange) -> str:
    """The turn's id on the bus."""
    data = next((data for _, data in exchange.events if data), exchange.document)
    holder = data.get("message") or data.get("response") or data
    return str(holder["id"]).rpartition("_" if "_" in holder["id"] else "-")[2]


def usage(exchange: Exchange) -> dict[str, int]:
    """prompt, cached, output and reasoning tokens as the client receives them."""
    found: dict[str, Any] = {}
    for _, data in exchange.events:
        for holder in (data or {}, (data or {}).get("message"), (data or {}).get("response")):
            found |= (holder or {}).get("usage") or {}
    if "prompt_tokens" in found:
        prompt, output = found["prompt_tokens"], found["completion_tokens"]
        cached = found["prompt_tokens_details"]["cached_tokens"]
        reasoning = found["completion_tokens_details"]["reasoning_tokens"]
    elif "cache_read_input_tokens" in found:
        cached, output = found["cache_read_input_tokens"], found["output_tokens"]
        prompt = found["input_tokens"] + cached + found["cache_creation_input_tokens"]
        reasoning = found["output_tokens_details"]["thinking_tokens"]
    else:
        prompt, output = found["input_tokens"], found["output_tokens"]
        cached = found["input_tokens_details"]["cached_tokens"]
        reasoning = found["output_tokens_details"]["reasoning_tokens"]
    return {"prompt": prompt, "cached": cached, "output": output, "reasoning": reasoning}
