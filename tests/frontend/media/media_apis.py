"""Images and PDFs as each API sends them, to a frontend with models that see them."""

import base64
from collections import Counter
from io import BytesIO
from typing import Any

import msgspec
from msgspec.structs import replace
from PIL import Image

from schemas.control import VISION
from schemas.conversation import Conversation, Media
from services.images.image_data import image_hash
from services.images.parts import media_of
from tests.kit import bodies
from tests.kit.bodies import CHAT, MESSAGES, RESPONSES, Api, Json, block
from tests.kit.frontend import CARD, FakeGateway, Served
from tests.kit.pdf_files import PNG

COUNTING = {
    MESSAGES: "/v1/messages/count_tokens",
    CHAT: "/v1/tokenize",
    RESPONSES: "/v1/responses/input_tokens",
}
"""Where an API counts the tokens of a request."""
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


def image_part(api: Api, data: str = IMAGE, media_type: str = "image/png") -> Json:
    """An image as an API takes it."""
    if api is MESSAGES:
        return block("image", source=block("base64", media_type=media_type, data=data))
    return link_part(api, f"data:{media_type};base64,{data}")


def link_part(api: Api, url: str) -> Json:
    """An image by its URL."""
    if api is MESSAGES:
        return block("image", source=block("url", url=url))
    if api is RESPONSES:
        return block("input_image", image_url=url)
    return block("image_url", image_url={"url": url})


def pdf_part(api: Api, data: bytes) -> Json:
    """A document with the title `plan.pdf`."""
    if api is MESSAGES:
        source = block("base64", media_type="application/pdf", data=encoded(data))
        return block("document", source=source, title="plan.pdf", citations={"enabled": False})
    url = f"data:application/pdf;base64,{encoded(data)}"
    file = {"filename": "plan.pdf", "file_data": url}
    return block("input_file", **file) if api is RESPONSES else block("file", file=file)


def result_body(api: Api, *parts: Json) -> Json:
    """A request with these parts in the result of a tool."""
    if api is MESSAGES:
        call = bodies.assistant(bodies.tool_use())
        result = bodies.user(bodies.tool_result(content=parts))
    elif api is CHAT:
        call = bodies.assistant(None, tool_calls=[bodies.chat_call()])
        result = bodies.chat_result(content=parts)
    else:
        call, result = bodies.function_call(), bodies.function_output(output=parts)
    return api.body(bodies.USER, call, result)


async def said(served: Served, api: Api, body: Json) -> str:
    """The text of the answer to a request."""
    reply = await served.post(api.path, body)
    assert reply.status == 200, reply.text
    document = reply.json
    if api is MESSAGES:
        return str(document["content"][-1]["text"])
    if api is RESPONSES:
        return str(document["output"][-1]["content"][-1]["text"])
    return str(document["choices"][0]["message"]["content"])


async def counted(served: Served, api: Api, body: Json) -> Conversation:
    """The conversation of a request, as it is counted."""
    reply = await served.post(COUNTING[api], body)
    assert reply.status == 200, reply.text
    conversation = served.gateway.tokenized[-1][2] if api is CHAT else served.gateway.counted[-1]
    assert conversation is not None
    return conversation


async def refused(served: Served, api: Api, body: Json) -> Json:
    """The error of a request that is refused."""
    reply = await served.post(api.path, body)
    assert reply.status == 400, reply.text
    return dict(reply.json["error"])
