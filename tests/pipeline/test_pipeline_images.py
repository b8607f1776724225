"""Images through the four services: each API, exact counts, sessions that extend their prompts, and
lost data."""

import base64
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import pytest
from nats.js.manager import JetStreamManager

from schemas import subjects
from services.images.image import image_hash
from services.images.store import IMAGE_BUCKET
from tests.clients.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL, Stack
from tests.kit.vision_model import png

SIZES = [(300, 200), (64, 64), (640, 480)]
STREAM = subjects.stream_of(IMAGE_BUCKET)
THOUGHT = "Hm.\n</think>\n\n"

pytestmark = pytest.mark.parametrize(
    "vision_dir", ["qwen", pytest.param("idefics", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
async def client(image_stack: Stack) -> AsyncIterator[Client]:
    one = Client(image_stack.url)
    yield one
    await one.http.close()


def source(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": encoded(data)},
    }


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def body(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 4000, "messages": messages, "tools": TOOLS, **more}


async def test_messages_session_with_images(image_stack: Stack, client: Client) -> None:
    """Images in a question and in results: each prompt extends the one before, counts agree, hashes
    are those of the data."""
    one, two, three = (png(*size, seed) for seed, size in enumerate(SIZES))
    look = THOUGHT + "Looking.\n\n" + call("ls") + "\n"
    question = [text(say(look, look, THOUGHT + "Done.")), source(one), text("and"), source(two)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    async with BusTurns(image_stack.nats.url) as bus:
        for number in range(3):
            request = body(messages, stream=True)
            answer = await client.stream(request)
            status, counted = await client.post(
                "/v1/messages/count_tokens", {**request, "stream": False}
            )
            usage = answer.usage
            assert (status, counted["input_tokens"]) == (
                200,
                usage["input_tokens"] + usage.get("cache_read_input_tokens", 0),
            )
            messages.append(answer.message)
            if number < 2:
                use = answer.blocks[-1]["id"]
                inner = [text("shot"), source(three if number else one)]
                messages.append(
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": use, "content": inner}],
                    }
                )
        turns = await bus.begun(3)
    hashes = [[image.hash for image in turn.images] for turn in turns]
    first, second, third = (image_hash(data, None) for data in (one, two, three))
    assert hashes == [[first, second], [first, second, first], [first, second, first, third]]
    assert [prefix_break(earlier, later) for earlier, later in itertools.pairwise(turns)] == [
        None,
        None,
    ]
    assert all(
        (later.cached or 0) > len(earlier.prompt) - 32
        for earlier, later in itertools.pairwise(turns)
    )


def chat(data: bytes, words: str) -> tuple[str, dict[str, Any]]:
    content = [text(words), {"type": "image_url", "image_url": {"url": url(data)}}]
    return "/v1/chat/completions", {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
    }


def responses(data: bytes, words: str) -> tuple[str, dict[str, Any]]:
    content = [
        {"type": "input_text", "text": words},
        {"type": "input_image", "image_url": url(data), "detail": "auto"},
    ]
    return "/v1/responses", {
        "model": MODEL,
        "input": [{"role": "user", "content": content}],
        "store": False,
    }


def messages_api(data: bytes, words: str) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", body(
        [{"role": "user", "content": [text(words), source(data)]}], tools=[]
    )


@contextlib.asynccontextmanager
async def stored(stack: Stack) -> AsyncIterator[JetStreamManager]:
    """The streams of the bus."""
    bus = await nats.connect(stack.nats.url)
    try:
        yield bus.jsm()
    finally:
        await bus.close()


APIS = pytest.mark.parametrize("make", [chat, responses, messages_api])


@APIS
async def test_every_api_shows_the_image(
    image_stack: Stack, client: Client, make: Callable[[bytes, str], tuple[str, dict[str, Any]]]
) -> None:
    data = png(200, 100, 7)
    async with BusTurns(image_stack.nats.url) as bus:
        status, document = await client.post(*make(data, say(THOUGHT + "Seen.")))
        assert status == 200, document
        assert "Note from the server" not in str(document)
        (turn,) = await bus.begun(1)
    assert [one.hash for one in turn.images] == [image_hash(data, None)]


async def test_images_that_the_store_has_lost_are_stored_again(
    image_stack: Stack, client: Client
) -> None:
    """The bucket is emptied: the next turn has the image all the same, from the client's own
    request."""
    data = png(128, 96, 9)
    request = body(
        [{"role": "user", "content": [text(say(THOUGHT + "One.")), source(data)]}], stream=True
    )
    assert (await client.stream(request)).error is None
    async with stored(image_stack) as streams:
        await streams.purge_stream(STREAM)
    for child in image_stack.children:
        if child.stage == "worker":  # its cache goes with it
            child.kill()
            child.start()
    image_stack.wait_ready({"worker": 1})
    answer = await client.stream(request)
    assert (answer.error, answer.contents[-1]) == (None, ("text", "One."))
