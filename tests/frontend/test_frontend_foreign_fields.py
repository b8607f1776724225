"""Fields that decide the answer of another API are refused by their name, in every API and wherever
it counts."""

import random
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession
from msgspec import Struct

from services.frontend.apis.chat.wire import ChatBody
from services.frontend.apis.completions.wire import CompletionsBody
from services.frontend.apis.messages.wire import MessagesBody
from services.frontend.apis.responses.wire import ResponsesBody
from tests.kit.bodies import Json, chat, completions, messages, responses
from tests.kit.frontend import serving

PATHS: dict[str, tuple[type[Struct], Json]] = {
    "/v1/messages": (MessagesBody, messages()),
    "/v1/messages/count_tokens": (MessagesBody, messages()),
    "/v1/chat/completions": (ChatBody, chat()),
    "/v1/completions": (CompletionsBody, completions()),
    "/v1/responses": (ResponsesBody, responses()),
    "/v1/responses/input_tokens": (ResponsesBody, responses()),
}
VALUES: tuple[object, ...] = ("a", 5, 0, False, ["a"], {"type": "text"}, [], "", {})
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


def declared() -> list[str]:
    """The fields that the docs name as refused where they belong to another API."""
    found = re.search(
        r"another API has and that decide its answer[^(]*\(([^)]*)\)", DIFFERENCES.read_text()
    )
    assert found is not None
    return re.findall(r"`(\w+)`", found[1])


@pytest.mark.parametrize("path", PATHS)
async def test_field_of_another_api_is_refused_by_its_name(path: str) -> None:
    body, plain = PATHS[path]
    draw = random.Random(path)
    names = [name for name in declared() if name not in body.__struct_fields__]
    assert len(names) > 6
    async with serving() as served, ClientSession(served.url) as http:
        for name in names:
            for value in (None, draw.choice(VALUES), draw.choice(VALUES)):
                async with http.post(path, json=plain | {name: value}) as reply:
                    answer = await reply.json()
                    if value is None:
                        assert reply.status == 200, (name, answer)
                        continue
                    assert reply.status == 400, (name, value, answer)
                    assert re.search(rf"(^|\W){name}\b", answer["error"]["message"]), answer
                    assert answer["error"].get("param", name) == name
