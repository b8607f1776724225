"""Every path that counts a prompt counts what the turn of the same request uses, with and without
API keys."""

import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import pytest

from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.pdf_files import PNG, pdf
from tests.kit.stack import MODEL, Stack

Json: TypeAlias = dict[str, Any]
KEY = "count-key"
WORK = (
    "I look [[turn]].\n</think>\n\nLooking.\n" + call("ls  -l") + call("date"),
    "So [[turn]].\n</think>\n\nDone.",
)
"""The model's turns: thought, text and two calls; then thought and text."""
THOUGHT = "x" * 40
FILE = "A file with a line. " * 20
FUNCTIONS = [
    {"type": "function", "name": t["name"], "parameters": t["input_schema"]} for t in TOOLS
]
IMAGE = base64.b64encode(PNG).decode()
PLAN = base64.b64encode(pdf("The plan has one page.")).decode()


@pytest.fixture(scope="module")
def urls(stack: Stack) -> Iterator[dict[str, str]]:
    """Two frontends of one pipeline: the second has keys."""
    keys = stack.directory / "count-keys"
    keys.write_text(f"team:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    guarded = stack.start("frontend", api_keys_file=keys)
    yield {"open": stack.url, "guarded": guarded.url}
    guarded.terminate()
    guarded.wait()


@pytest.fixture(params=["open", "guarded"])
async def client(request: pytest.FixtureRequest, urls: dict[str, str]) -> AsyncIterator[Client]:
    connected = Client(urls[request.param])
    connected.http.headers["authorization"] = f"Bearer {KEY}"
    await connected.ready()
    yield connected
    await connected.http.close()


async def post(client: Client, path: str, body: Json) -> Json:
    status, document = await client.post(path, body)
    assert status == 200, document
    return document


class Session:
    """A client of one API: makes requests with some features, and knows the paths that count
    them."""

    path: str
    counts: tuple[str, ...]

    def __init__(self, features: set[str]) -> None:
        self.features = features

    def first(self, outputs: tuple[str, ...]) -> Json:
        """The request of the first turn."""
        raise NotImplementedError

    def following(self, request: Json, answer: Json) -> Json:
        """The request after an answer."""
        raise NotImplementedError

    def used(self, answer: Json) -> int:
        """The tokens of the prompt, cached ones included."""
        raise NotImplementedError

    def counting(self, request: Json, path: str) -> Json:
        """The request for a path that counts."""
        return request


class Messages(Session):
    path = "/v1/messages"
    counts = ("/v1/messages/count_tokens", "/v1/tokenize", "/tokenize")

    def first(self, outputs: tuple[str, ...]) -> Json:
        content: list[Json] = [{"type": "text", "text": say(*outputs)}]
        if "media" in self.features:
            source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
            content.append({"type": "image", "source": source})
        if "document" in self.features:
            source = {"type": "base64", "media_type": "application/pdf", "data": PLAN}
            content.append({"type": "document", "title": "plan.pdf", "source": source})
        body: Json = {
            "model": MODEL,
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": content}],
        }
        if "instruction" in self.features:
            body["system"] = "x-anthropic-billing-header: cc_version=1.2.3;\nBe brief."
            body["messages"].append({"role": "system", "content": "Today is Monday."})
        if "tools" in self.features:
            body["tools"] = TOOLS
        return body

    def following(self, request: Json, answer: Json) -> Json:
        content = []
        for block in answer["content"]:
            if block["type"] != "thinking":
                content.append(block)
            elif "sealed" in self.features:
                content.append({**block, "thinking": ""})
            elif "dropped" not in self.features:
                content.append(block)
        results: list[Json] = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": FILE}
            for block in content
            if block["type"] == "tool_use"
        ]
        if "more" in self.features or not results:
            results.append({"type": "text", "text": "And?"})
        messages = [*request["messages"], {"role": "assistant", "content": content}]
        following = request | {"messages": [*messages, {"role": "user", "content": results}]}
        if "forced" in self.features and "tools" in self.features:
            following["tool_choice"] = {"type": "any"}
        return following

    def used(self, answer: Json) -> int:
        usage = answer["usage"]
        return int(
            usage["input_tokens"]
            + usage["cache_read_input_tokens"]
            + usage["cache_creation_input_tokens"]
        )


class Chat(Session):
    path = "/v1/chat/completions"
    counts = ("/v1/tokenize", "/tokenize")

    def first(self, outputs: tuple[str, ...]) -> Json:
        content: list[Json] = [{"type": "text", "text": say(*outputs)}]
        if "media" in self.features:
            content.append(
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
            )
        if "document" in self.features:
            file = {"filename": "plan.pdf", "file_data": f"data:application/pdf;base64,{PLAN}"}
            content.append({"type": "file", "file": file})
        messages = [{"role": "user", "content": content}]
        if "instruction" in self.features:
            messages.insert(0, {"role": "developer", "content": "Be brief."})
        # Without this field the body could be one of Messages.
        body: Json = {"model": MODEL, "messages": messages, "max_completion_tokens": 1000}
        if "tools" in self.features:
            keys = ("name", "parameters")
            body["tools"] = [
                {"type": "function", "function": {k: f[k] for k in keys}} for f in FUNCTIONS
            ]
        return body

    def following(self, request: Json, answer: Json) -> Json:
        message = answer["choices"][0]["message"]
        names = ["role", "content", "tool_calls"]
        if "sealed" in self.features:
            names.append("reasoning_details")
        elif "dropped" not in self.features:
            names.append("reasoning_content")
        kept = {name: message[name] for name in names if message.get(name) is not None}
        results: list[Json] = [
            {"role": "tool", "tool_call_id": call["id"], "content": FILE}
            for call in kept.get("tool_calls", [])
        ]
        if "more" in self.features or not results:
            results.append({"role": "user", "content": "And?"})
        following = request | {"messages": [*request["messages"], kept, *results]}
        if "forced" in self.features and "tools" in self.features:
            following["tool_choice"] = "required"
        return following

    def used(self, answer: Json) -> int:
        return int(answer["usage"]["prompt_tokens"])


class Responses(Session):
    """Sends the whole history, or with `stored` the id of the answer before."""

    path = "/v1/responses"
    counts = ("/v1/responses/input_tokens",)
    stored = False

    def first(self, outputs: tuple[str, ...]) -> Json:
        content: list[Json] = [{"type": "input_text", "text": say(*outputs)}]
        if "media" in self.features:
            content.append({"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"})
        if "document" in self.features:
            data = f"data:application/pdf;base64,{PLAN}"
            content.append({"type": "input_file", "filename": "plan.pdf", "file_data": data})
        items: list[Json] = [{"role": "user", "content": content}]
        if "instruction" in self.features:
            items.insert(0, {"role": "developer", "content": "Be brief."})
        body: Json = {"model": MODEL, "input": items, "include": ["reasoning.encrypted_content"]}
        if "tools" in self.features:
            body["tools"] = FUNCTIONS
        return body

    def following(self, request: Json, answer: Json) -> Json:
        items = []
        for item in answer["output"]:
            if item["type"] != "reasoning":
                items.append(item)
            elif "sealed" in self.features:
                items.append({key: value for key, value in item.items() if key != "content"})
            elif "dropped" not in self.features:
                items.append(item)
        results: list[Json] = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": FILE}
            for item in items
            if item["type"] == "function_call"
        ]
        if "more" in self.features or not results:
            results.append({"role": "user", "content": "And?"})
        following = request | {"input": [*request["input"], *items, *results]}
        if self.stored:
            following = request | {"input": results, "previous_response_id": answer["id"]}
        if "forced" in self.features and "tools" in self.features:
            following["tool_choice"] = "required"
        return following

    def used(self, answer: Json) -> int:
        return int(answer["usage"]["input_tokens"])


class StoredResponses(Responses):
    stored = True


SESSIONS: dict[str, type[Session]] = {
    "messages": Messages,
    "chat": Chat,
    "responses": Responses,
    "previous_response_id": StoredResponses,
}


async def counted(client: Client, session: Session, request: Json) -> set[int]:
    """The counts of all paths for one request."""
    found = set()
    for path in session.counts:
        document = await post(client, path, session.counting(request, path))
        found.add(int(document.get("input_tokens") or document["count"]))
    return found


async def check(client: Client, kind: str, features: set[str]) -> list[int]:
    """Plays a session of three turns; compares the counts of each request with its turn. Returns
    the sizes."""
    session = SESSIONS[kind](features)
    client.http.headers["x-turnwire-reasoning-details"] = "1"
    request, sizes = session.first(tuple(f"{sorted(features)}{output}" for output in WORK)), []
    for _ in range(3):
        counts = await counted(client, session, request)
        answer = await post(client, session.path, request)
        assert counts == {session.used(answer)}, (kind, sorted(features))
        sizes.append(session.used(answer))
        request = session.following(request, answer)
    return sizes


@pytest.mark.parametrize("kind", SESSIONS)
async def test_counts_equal_turns(client: Client, kind: str) -> None:
    plain = await check(client, kind, {"tools"})
    sealed = await check(client, kind, {"tools", "sealed", "media", "document", "instruction"})
    assert plain[0] < plain[1] < plain[2]
    assert sealed[0] < sealed[1] < sealed[2]


async def session_with_seals(client: Client, kind: str) -> tuple[Session, Json, int]:
    """A request with sealed reasoning and calls, and the size of its prompt."""
    session = SESSIONS[kind]({"tools", "sealed"})
    first = session.first((f"{THOUGHT} {kind}{WORK[0]}", *WORK[1:]))
    request = session.following(first, await post(client, session.path, first))
    (size,) = await counted(client, session, request)
    return session, request, size


async def test_context_edits_see_seals(client: Client) -> None:
    session, request, size = await session_with_seals(client, "messages")
    turns = []
    for trigger in (size, size - 1):
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": trigger},
            "keep": {"type": "tool_uses", "value": 0},
        }
        body = request | {"context_management": {"edits": [edit]}}
        used = session.used(await post(client, session.path, body))
        assert await counted(client, session, body) == {used}
        turns.append(used)
        document = await post(client, "/v1/messages/count_tokens", body)
        assert document["context_management"]["original_input_tokens"] == size
    unchanged, edited = turns
    assert unchanged == size
    assert edited != size


async def test_compaction_of_messages_sees_seals(client: Client) -> None:
    _, request, size = await session_with_seals(client, "messages")
    for trigger, kinds in ((size, "thinking"), (size - 1, "compaction")):
        edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": trigger}}
        answer = await post(
            client, "/v1/messages", request | {"context_management": {"edits": [edit]}}
        )
        assert answer["content"][0]["type"] == kinds


@pytest.mark.parametrize("kind", ["responses", "previous_response_id"])
async def test_compaction_of_responses_sees_seals(client: Client, kind: str) -> None:
    _, request, size = await session_with_seals(client, kind)
    for threshold, first in ((size + 1, "reasoning"), (size, "compaction")):
        managed = [{"type": "compaction", "compact_threshold": threshold}]
        answer = await post(client, "/v1/responses", request | {"context_management": managed})
        assert answer["output"][0]["type"] == first
