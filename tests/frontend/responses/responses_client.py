"""A small client of `/v1/responses` for tests."""

import asyncio
from pathlib import Path
from typing import Any

from services.runtime.config.frontend import FrontendConfig
from tests.kit.answers import events
from tests.kit.bodies import MODEL
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import Reply, Served, key_line
from tests.kit.waiting import LIMIT_S

PATH = "/v1/responses"
ANSWER = ["reasoning", "message", "function_call"]
"""The types of the items of `agent`'s answer."""


def agent() -> list[Step]:
    """A turn that thinks, says something, and calls a tool."""
    look = call(2, "look", '{"at": "it"}', call_id="call_1")
    return [[*reasoning(0, "I look."), *text(1, "Let me see."), *look, finish(3)]]


def types(items: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in items]


def keyed(folder: Path, *names: str, **options: Any) -> FrontendConfig:
    """A configuration with keys, each of which is the name of its tenant."""
    keys = folder / "keys"
    keys.write_text("".join(key_line(name, name) for name in names))
    return FrontendConfig(api_keys_file=str(keys), **options)


class Client:
    """Sends requests to one server."""

    def __init__(self, served: Served, key: str | None = None) -> None:
        self._served = served
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def _send(self, method: str, path: str, **options: Any) -> Reply:
        return await self._served.send(method, PATH + path, headers=self._headers, **options)

    async def ask(self, method: str, path: str = "", status: int = 200, **options: Any) -> Any:
        reply = await self._send(method, path, **options)
        assert reply.status == status, reply.text
        return reply.json

    async def refused(
        self, method: str, path: str = "", status: int = 400, **options: Any
    ) -> dict[str, Any]:
        """The error of a request that is answered with this status."""
        error: dict[str, Any] = (await self.ask(method, path, status, **options))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    async def status(self, path: str) -> int:
        """The status of a GET."""
        return (await self._send("GET", path)).status

    async def get(self, id: str, path: str = "") -> Any:
        """A response, or a path below it."""
        return await self.ask("GET", f"/{id}{path}")

    async def refuse(self, path: str = "", status: int = 400, **body: Any) -> dict[str, Any]:
        """The error of a POST that is answered with this status."""
        asked = {"model": MODEL, "input": "hi"} | body
        return await self.refused("POST", path, status, json=asked)

    async def until(self, id: str, status: str) -> Any:
        """The response as soon as it has this status."""
        async with asyncio.timeout(LIMIT_S):
            while (found := await self.get(id))["status"] != status:
                pass
        return found

    async def replay(self, id: str, after: int | None = None) -> list[dict[str, Any]]:
        """The events of a response, all or after one."""
        query = "" if after is None else f"&starting_after={after}"
        return await self.stream("GET", f"/{id}?stream=true{query}")

    async def create(self, **body: Any) -> Any:
        return await self.ask("POST", json={"model": MODEL, "input": "hi"} | body)

    async def stream(
        self, method: str = "POST", path: str = "", **options: Any
    ) -> list[dict[str, Any]]:
        """The events of a stream; it must end in [DONE]."""
        if method == "POST":
            options = {"json": {"model": MODEL, "input": "hi", "stream": True} | options}
        reply = await self._send(method, path, **options)
        assert reply.status == 200, reply.text
        assert reply.body.endswith(b"data: [DONE]\n\n")
        return [event for event in events(reply.body) if event["type"] != "keepalive"]


def said(conversation: Any) -> list[tuple[str, list[Any]]]:
    """Roles and texts of a conversation's messages."""
    return [
        (
            message.role,
            [getattr(part, "text", None) or getattr(part, "name", None) for part in message.parts],
        )
        for message in conversation.messages
    ]
