"""Tests that captured requests of agents are converted with everything they have. The captures are
not part of the repository."""

import json
from pathlib import Path

import pytest

from schemas.conversation import Call, Conversation, Result
from services.frontend.apis.messages.request import parse
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.request.body import decode
from tests.kit.bodies import CHAT
from tests.kit.captures import CAPTURES, REASON
from tests.kit.every import Cases


class AnyBlob:
    """A sealer that opens every blob as a summary."""

    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\n" + blob


def read(path: Path) -> tuple[bytes, Conversation]:
    """The body of a captured request, and its conversation."""
    capture = json.loads(path.read_text())
    body = json.dumps(capture["body"], ensure_ascii=False).encode()
    headers = {name.lower(): value for name, value in capture["headers"]}
    if "chat-completions" in path.name:
        return body, CHAT.parse(body, headers).conversation
    if "messages" in path.name:
        counting = capture["path"].endswith("count_tokens")
        return body, parse(body, headers, counting=counting).conversation
    return body, Responses().convert(decode(body), headers, sealer=AnyBlob()).conversation


@pytest.mark.skipif(not CAPTURES.exists(), reason=REASON)
def test_captured_requests_keep_their_calls_and_results(cases: Cases) -> None:
    paths = [
        path
        for pattern in ("chat-completions", "messages*", "responses")
        for path in sorted(CAPTURES.glob(f"*/*/*-POST-v1-{pattern}.json"))
        if ".response." not in path.name
    ]
    assert paths
    for path in paths:
        with cases.case(path="/".join(path.parts[-3:])):
            body, conversation = read(path)
            parts = [part for message in conversation.messages for part in message.parts]
            calls = [part for part in parts if isinstance(part, Call)]
            results = [part for part in parts if isinstance(part, Result)]
            assert {call.call_id for call in calls} == {result.call_id for result in results}
            for call in calls:
                assert body.count(json.dumps(call.call_id).encode()) >= 2
            assert conversation.model in body.decode()
