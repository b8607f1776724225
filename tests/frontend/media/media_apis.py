"""Images and PDFs as each API sends them, to a frontend with models that see them."""

import base64
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
from msgspec.structs import replace
from PIL import Image

from schemas.control import VISION
from schemas.conversation import Conversation, Media
from services.images.image import image_hash
from services.images.parts import media_of
from tests.kit.frontend import CARD, MODEL, FakeGateway, Served
from tests.kit.pdf_files import PNG

HELLO = "Hello there"
"""What the fake gateway says."""


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGE = encoded(PNG)
SEEING = replace(CARD, features=[VISION])
SEEN = Media("image", "image/png", len(PNG), hash=image_hash(PNG, None), width=2, height=2)
"""`IMAGE`, as a model with vision gets it."""


def seeing(**options: Any) -> FakeGateway:
    return FakeGateway(cards=[SEEING], **options)


def image(width: int, height: int) -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return out.getvalue()


def media(conversation: Conversation) -> list[Media]:
    msgspec.json.encode(conversation)  # nothing in it keeps the data
    return media_of(conversation)


class Store:
    """Stands for the bucket."""

    def __init__(self) -> None:
        self.images: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.error: Exception | None = None

    async def put(self, image: str, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.images[image] = data
        self.puts[image] += 1


@dataclass(frozen=True)
class Api:
    """How one API sends media and returns text."""

    path: str
    counting: str

    def image(self, data: str = IMAGE, media_type: str = "image/png") -> dict[str, Any]:
        if self is not MESSAGES:
            return self.link(f"data:{media_type};base64,{data}")
        source = {"type": "base64", "media_type": media_type, "data": data}
        return {"type": "image", "source": source}

    def link(self, url: str) -> dict[str, Any]:
        """An image by its URL."""
        if self is MESSAGES:
            return {"type": "image", "source": {"type": "url", "url": url}}
        if self is RESPONSES:
            return {"type": "input_image", "image_url": url}
        return {"type": "image_url", "image_url": {"url": url}}

    def pdf(self, data: bytes) -> dict[str, Any]:
        """A document with the title `plan.pdf`."""
        if self is MESSAGES:
            source = {"type": "base64", "media_type": "application/pdf", "data": encoded(data)}
            shown = {"title": "plan.pdf", "citations": {"enabled": False}}
            return {"type": "document", "source": source, **shown}
        url = f"data:application/pdf;base64,{encoded(data)}"
        file = {"filename": "plan.pdf", "file_data": url}
        return (
            {"type": "input_file", **file} if self is RESPONSES else {"type": "file", "file": file}
        )

    def body(self, *turns: Any, **fields: Any) -> dict[str, Any]:
        """A request with these contents of messages, of the user and the assistant by turns."""
        roles = ["assistant" if n % 2 else "user" for n in range(len(turns))]
        given = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
        return self._body(given, **fields)

    def _body(self, messages: list[Any], **fields: Any) -> dict[str, Any]:
        if self is RESPONSES:
            return {"model": MODEL, "input": messages, "store": False, **fields}
        return {"model": MODEL, "max_tokens": 9, "messages": messages, **fields}

    def result_body(self, *parts: Any) -> dict[str, Any]:
        """A request with these parts in the result of a tool."""
        question = {"role": "user", "content": "Look."}
        if self is MESSAGES:
            use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": parts}
            return self.body("Look.", [use], [result])
        function = {"name": "Read", "arguments": "{}"}
        if self is RESPONSES:
            call = {"type": "function_call", "call_id": "call_1", **function}
            output = {"type": "function_call_output", "call_id": "call_1", "output": parts}
            return self._body([question, call, output])
        tool_call = {"id": "call_1", "type": "function", "function": function}
        made = {"role": "assistant", "tool_calls": [tool_call]}
        return self._body(
            [question, made, {"role": "tool", "tool_call_id": "call_1", "content": parts}]
        )

    async def said(self, served: Served, body: dict[str, Any]) -> str:
        """The text of the answer to a request."""
        reply = await served.post(self.path, body)
        assert reply.status == 200, reply.text
        document = reply.json
        if self is MESSAGES:
            return str(document["content"][-1]["text"])
        if self is RESPONSES:
            return str(document["output"][-1]["content"][-1]["text"])
        return str(document["choices"][0]["message"]["content"])

    async def count(self, served: Served, body: dict[str, Any]) -> Conversation:
        """Counts the prompt of a request. Returns the conversation that was counted."""
        left = {name: body[name] for name in body if name not in ("max_tokens", "stream", "store")}
        reply = await served.post(self.counting, left)
        assert reply.status == 200, reply.text
        if self is not CHAT:
            return served.gateway.counted[-1]
        conversation = served.gateway.tokenized[-1][2]
        assert conversation is not None
        return conversation

    async def refused(self, served: Served, body: dict[str, Any]) -> dict[str, Any]:
        """The error of a request that is refused."""
        reply = await served.post(self.path, body)
        assert reply.status == 400, reply.text
        return dict(reply.json["error"])


MESSAGES = Api("/v1/messages", "/v1/messages/count_tokens")
CHAT = Api("/v1/chat/completions", "/v1/tokenize")
RESPONSES = Api("/v1/responses", "/v1/responses/input_tokens")
APIS = [MESSAGES, CHAT, RESPONSES]
