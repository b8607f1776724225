"""Tests an API from outside the package: an `Api` object that is passed to the application with the
others."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec import Struct
from prometheus_client import CollectorRegistry
from structlog import get_logger

from schemas.conversation import Conversation, Message, Text
from schemas.errors import ErrorInfo, Invalid
from schemas.events import Delta, Prepared, TurnEvent
from services.frontend.apis.shared.api import Api, ApiSetup, Operation
from services.frontend.apis.shared.http_answer import http_answer, read_request
from services.frontend.app import APIS, Telemetry, make_app
from services.frontend.http.errors import ErrorFormat, ErrorReply
from services.frontend.turns.interfaces import AnswerInfo
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, FakeGateway


class Question(Struct):
    """A question."""

    question: str


class Shout(Struct):
    """An answer."""

    answer: str


class Oops(Struct):
    """An error."""

    oops: str


def oops(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    return ErrorReply(
        status or 422,
        {"content-type": "application/json"},
        json.dumps({"oops": info.message}).encode(),
    )


class Answer:
    """Both forms of an answer: one line for each delta, or the whole text."""

    def __init__(self) -> None:
        self.text = ""

    def start(self, prepared: Sequence[Prepared]) -> bytes:
        return b""

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        texts = [event.text.upper() for event in events if isinstance(event, Delta)]
        self.text += "".join(texts)
        return "".join(f"{text}\n" for text in texts).encode()

    def error(self, info: ErrorInfo) -> bytes:
        return b"!\n"

    def body(self) -> bytes:
        return json.dumps({"answer": self.text}).encode()


class ShoutAsk(Struct, frozen=True):
    conversations: list[Conversation]
    stream: bool
    notes: list[str]
    choices: ClassVar[int] = 1
    may_shorten: ClassVar[bool] = False

    def renderer(self, answer: AnswerInfo) -> Any:
        return Answer()

    def collector(self, answer: AnswerInfo) -> Any:
        return Answer()


class Shouting:
    name = "shouting"
    keepalive = b"\n"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ShoutAsk:
        asked = json.loads(body)
        if "question" not in asked:
            raise Invalid("ask something")
        conversation = Conversation(MODEL, [Message("user", [Text(asked["question"])])])
        return ShoutAsk([conversation], bool(asked.get("stream")), [])


def add_shouting(setup: ApiSetup) -> None:
    shouting = Shouting()

    async def shout(http: web.Request) -> web.StreamResponse:
        async with http_answer(setup.turns, http, shouting) as answer:
            request = await read_request(http, setup.config.max_body_bytes, shouting.parse)
            return await answer.respond(request)

    setup.app.router.add_post("/v1/shouts", shout)


SHOUTING = Api(
    name="Shouting",
    title="Shouting",
    errors=ErrorFormat("openai", Oops, frozenset({422}), oops),
    paths=("/v1/shouts",),
    operations=(
        Operation(
            path="/v1/shouts",
            summary="Shout",
            body=Question,
            example={"question": "?"},
            answer=Shout,
        ),
    ),
    add_routes=add_shouting,
)


async def test_another_api_serves_turns_errors_and_its_part_of_the_document() -> None:
    gateway = FakeGateway()
    apis = tuple(api for api in APIS if api.errors.name != "openai")
    telemetry = Telemetry(CollectorRegistry(), get_logger())
    app = make_app(FrontendConfig(), gateway, telemetry, apis=(*apis, SHOUTING))
    async with TestClient(TestServer(app)) as http:
        whole = await http.post("/v1/shouts", json={"question": "well?"})
        assert await whole.json() == {"answer": "HELLO THERE"}
        stream = await http.post("/v1/shouts", json={"question": "well?", "stream": True})
        assert (await stream.text()).split() == ["HELLO", "THERE"]
        refused = await http.post("/v1/shouts", json={})
        assert (refused.status, await refused.json()) == (422, {"oops": "ask something"})
        missing = await http.get("/v1/shouts/1")
        assert (missing.status, await missing.json()) == (404, {"oops": "Not found"})
        document = await (await http.get("/openapi.json")).json()
    assert gateway.turns[0].conversation.messages == [Message("user", [Text("well?")])]
    assert document["paths"]["/v1/shouts"]["post"]["responses"].keys() == {"200", "422"}
    assert document["components"]["schemas"]["ShoutingQuestion"]["required"] == ["question"]
