"""Images through the four services: each API, exact counts, a session that extends its prompts, and
lost data."""

import base64
import itertools
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest

from schemas import subjects
from services.images.image_data import image_hash
from services.images.store import IMAGE_BUCKET
from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL, Stack
from tests.kit.vision_model import png

THOUGHT = "Hm.\n</think>\n\n"

pytestmark = pytest.mark.parametrize("vision_dir", ["qwen"], indirect=True)


@pytest.fixture
async def client(image_stack: Stack) -> AsyncIterator[Client]:
    one = Client(image_stack.url)
    yield one
    await one.http.close()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def block(data: bytes) -> dict[str, Any]:
    """An image of Messages."""
    source = {"type": "base64", "media_type": "image/png", "data": encoded(data)}
    return {"type": "image", "source": source}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def body(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 4000, "messages": [*messages], "tools": TOOLS}


async def test_messages_session_with_images(image_stack: Stack, client: Client) -> None:
    """Images in a question and in results: each prompt extends the one before, counts agree, hashes
    are those of the data."""
    images = [png(*size, seed) for seed, size in enumerate([(300, 200), (64, 64), (640, 480)])]
    look = THOUGHT + "Looking.\n\n" + call("ls") + "\n"
    words = text(say(look, look, THOUGHT + "Done."))
    content = [words, block(images[0]), text("and"), block(images[1])]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    async with BusTurns(image_stack.nats.url) as bus:
        for shown in (images[0], images[2], None):
            request = body(*messages)
            answer = await client.stream({**request, "stream": True})
            _, counted = await client.post("/v1/messages/count_tokens", request)
            usage = answer.usage
            used = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert counted["input_tokens"] == used
            if shown is not None:
                result = {
                    "type": "tool_result",
                    "tool_use_id": answer.blocks[-1]["id"],
                    "content": [text("shot"), block(shown)],
                }
                messages += [answer.message, {"role": "user", "content": [result]}]
        turns = await bus.begun(3)
    first, second, third = (image_hash(data, None) for data in images)
    hashes = [[image.hash for image in turn.images] for turn in turns]
    assert hashes == [[first, second], [first, second, first], [first, second, first, third]]
    for earlier, later in itertools.pairwise(turns):
        assert prefix_break(earlier, later) is None
        assert (later.cached or 0) > len(earlier.prompt) - 32


def chat(data: bytes, words: str) -> dict[str, Any]:
    url = {"url": f"data:image/png;base64,{encoded(data)}"}
    content = [text(words), {"type": "image_url", "image_url": url}]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


def responses(data: bytes, words: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{encoded(data)}"
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    content = [{"type": "input_text", "text": words}, image]
    return {"model": MODEL, "input": [{"role": "user", "content": content}], "store": False}


async def test_every_api_shows_an_image_also_after_the_store_has_lost_it(
    image_stack: Stack, client: Client
) -> None:
    """The next turn has the image from the client's own request."""
    data, words = png(200, 100, 7), say(THOUGHT + "Seen.")
    messages = body({"role": "user", "content": [text(words), block(data)]})
    requests = {
        "/v1/chat/completions": chat(data, words),
        "/v1/responses": responses(data, words),
        "/v1/messages": messages,
    }
    async with BusTurns(image_stack.nats.url) as bus:
        for path, request in requests.items():
            status, document = await client.post(path, request)
            assert status == 200, (path, document)
            assert "Note from the server" not in str(document), path
        for turn in await bus.begun(len(requests)):
            assert [one.hash for one in turn.images] == [image_hash(data, None)]
    streams = await nats.connect(image_stack.nats.url)
    await streams.jsm().purge_stream(subjects.stream_of(IMAGE_BUCKET))
    await streams.close()
    (worker,) = image_stack.of("worker")
    worker.kill()  # its cache goes with it
    worker.start()
    image_stack.wait_ready({"worker": 1})
    answer = await client.stream({**messages, "stream": True})
    assert (answer.error, answer.contents[-1]) == (None, ("text", "Seen."))
