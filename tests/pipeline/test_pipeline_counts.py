"""Every path that counts a prompt counts what the turn of the same request uses."""

from typing import Any

import pytest

from schemas.conversation import Media
from tests.kit.messages_client import Client, call, say
from tests.pipeline.sessions import Session, used
from turnwire_tools.clients.answer import APIS, Api

WORK = say(
    "I look [[turn]].\n</think>\n\nLooking.\n" + call("ls  -l") + call("date"),
    "So [[turn]].\n</think>\n\nDone.",
)
"""The model's turns: thought, text and two calls; then thought and text."""
COUNTS = {
    "messages": ("/v1/messages/count_tokens", "/v1/tokenize", "/tokenize"),
    "chat": ("/v1/tokenize", "/tokenize"),
    "responses": ("/v1/responses/input_tokens",),
}
"""The paths that count a request."""


def opened(client: Client, api: Api, question: str) -> Session:
    """A session with an image."""
    client.http.headers["x-turnwire-reasoning-details"] = "1"
    result = "A file with a line. " * 20
    session = Session(client, api, question + WORK, result=result, reasons=True)
    session.messages[0].parts.append(Media("image", "image/png", size_bytes=200))
    return session


async def counted(session: Session, body: dict[str, Any]) -> int:
    """The count of a request, which all paths agree on."""
    documents = [await session.post(path, body) for path in COUNTS[session.api]]
    (count,) = {int(one.get("input_tokens") or one["count"]) for one in documents}
    return count


@pytest.mark.parametrize("api", APIS)
async def test_counts_equal_turns(client: Client, api: Api) -> None:
    session = opened(client, api, "equal")
    sizes = []
    for _ in range(3):
        sizes.append(await counted(session, session.body))
        assert used(api, await session.turn()) == sizes[-1]
    assert sizes[0] < sizes[1] < sizes[2]


async def test_count_of_a_stored_session_equals_that_of_its_history(client: Client) -> None:
    """Compaction begins at that count."""
    session = opened(client, "responses", "stored")
    first = await session.turn()
    size = await counted(session, session.body)
    results = [one for one in session.body["input"] if one.get("type") == "function_call_output"]
    stored = session.body | {"input": results, "previous_response_id": first["id"]}
    assert await counted(session, stored) == size
    for threshold, kind in ((size + 1, "reasoning"), (size, "compaction")):
        managed = [{"type": "compaction", "compact_threshold": threshold}]
        for body in (stored, session.body):
            answer = await session.post("/v1/responses", body | {"context_management": managed})
            assert answer["output"][0]["type"] == kind
