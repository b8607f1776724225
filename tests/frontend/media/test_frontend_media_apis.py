"""Images and PDFs over each API: the conversation that the pipeline gets, and the note in the
answer."""

import base64
import json
from typing import Any, NamedTuple

import aiohttp
import pytest

from schemas.conversation import Media, Result, Text
from services.frontend.turns.notice import make_notice
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, Served, serving
from tests.kit.pdf_files import PNG, pdf

IMAGE = base64.b64encode(PNG).decode()
PLAN = base64.b64encode(pdf("The code is 4711.")).decode()
LOCKED = base64.b64encode(pdf("x", locked=True)).decode()
TEXT = "[page 1]\nThe code is 4711."
HELLO = "Hello there"


def messages(*turns: Any) -> dict[str, Any]:
    roles = ["assistant" if n % 2 else "user" for n in range(len(turns))]
    given = [{"role": role, "content": content} for role, content in zip(roles, turns, strict=True)]
    return {"model": MODEL, "max_tokens": 9, "messages": given}


class Api(NamedTuple):
    """How one API sends media and returns text."""

    path: str
    counting: str

    def image(self, data: str = IMAGE, media_type: str = "image/png") -> dict[str, Any]:
        if self.path == "/v1/messages":
            return {
                "type": "image",
                "source": {"type": "base64", "media_type": media_type, "data": data},
            }
        url = f"data:{media_type};base64,{data}"
        if self.path == "/v1/responses":
            return {"type": "input_image", "image_url": url}
        return {"type": "image_url", "image_url": {"url": url}}

    def pdf(self, data: str) -> dict[str, Any]:
        if self.path == "/v1/messages":
            source = {"type": "base64", "media_type": "application/pdf", "data": data}
            return {
                "type": "document",
                "source": source,
                "title": "plan.pdf",
                "citations": {"enabled": False},
            }
        file = {"filename": "plan.pdf", "file_data": f"data:application/pdf;base64,{data}"}
        return (
            {"type": "input_file", **file}
            if self.path == "/v1/responses"
            else {"type": "file", "file": file}
        )

    def body(self, *turns: Any, stream: bool = False) -> dict[str, Any]:
        body = messages(*turns) | {"stream": stream}
        if self.path != "/v1/responses":
            return body
        return {"model": MODEL, "input": body["messages"], "stream": stream, "store": False}

    def result_body(self, *parts: Any) -> dict[str, Any]:
        """A request with these parts in the result of a tool."""
        if self.path == "/v1/messages":
            use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
            return self.body(
                "Look.",
                [use],
                [{"type": "tool_result", "tool_use_id": "toolu_1", "content": parts}],
            )
        if self.path == "/v1/responses":
            call = {"type": "function_call", "call_id": "call_1", "name": "Read", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": "call_1", "output": parts}
            return {
                **self.body("Look."),
                "input": [{"role": "user", "content": "Look."}, call, output],
            }
        body, function = self.body("Look."), {"name": "Read", "arguments": "{}"}
        body["messages"] += [
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": parts},
        ]
        return body

    def text(self, answer: str) -> str:
        """The text of an answer, whole or streamed."""
        if not answer.startswith(("data:", "event:")):
            return self._whole(json.loads(answer))
        events = [
            json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")
        ]
        if self.path == "/v1/messages":
            return "".join(
                event["delta"].get("text", "")
                for event in events
                if event["type"] == "content_block_delta"
            )
        if self.path == "/v1/responses":
            return self._whole(events[-1]["response"])
        return "".join(
            choice["delta"].get("content") or "" for event in events for choice in event["choices"]
        )

    def _whole(self, document: Any) -> str:
        if self.path == "/v1/messages":
            return str(document["content"][-1]["text"])
        if self.path == "/v1/responses":
            return str(document["output"][-1]["content"][-1]["text"])
        return str(document["choices"][0]["message"]["content"])


APIS = [
    Api("/v1/messages", "/v1/messages/count_tokens"),
    Api("/v1/chat/completions", "/v1/tokenize"),
    Api("/v1/responses", "/v1/responses/input_tokens"),
]


async def post(served: Served, path: str, body: dict[str, Any]) -> str:
    async with aiohttp.ClientSession() as http, http.post(served.url + path, json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        return text


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
async def test_note_is_sent_once_and_is_not_in_prompts(api: Api, stream: bool) -> None:
    async with serving() as served:
        first = [api.image()]
        answer = api.text(await post(served, api.path, api.body(first, stream=stream)))
        assert answer == HELLO + make_notice({"image"})
        again = api.text(
            await post(served, api.path, api.body(first, answer, "And?", stream=stream))
        )
        assert again == HELLO
        # As if there had been no note: the prompt before, the model's own text, the user's.
        turns = [turn.conversation.messages for turn in served.gateway.turns]
        assert turns[1][:1] == turns[0]
        assert [part for turn in turns[1][1:] for part in turn.parts] == [Text(HELLO), Text("And?")]
        # A document of another kind gets a note of its own.
        more = api.text(
            await post(served, api.path, api.body(first, answer, [api.pdf(LOCKED)], stream=stream))
        )
        assert more == HELLO + make_notice({"document"})
        (part,) = served.gateway.turns[-1].conversation.messages[-1].parts
        assert isinstance(part, Media)
        assert (part.title, part.problem) == ("plan.pdf", "protected by a password")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
async def test_pdf_is_its_text_in_turns_and_counts(api: Api) -> None:
    async with serving() as served:
        ask = [api.pdf(PLAN)]
        assert api.text(await post(served, api.path, api.body(ask))) == HELLO
        body = api.body(ask)
        for name in ("max_tokens", "stream", "store"):
            body.pop(name, None)
        await post(served, api.counting, body)
        counted = [
            one
            for one in [*served.gateway.counted, *(c for *_, c, _ in served.gateway.tokenized)]
            if one
        ]
        for conversation in (served.gateway.turns[0].conversation, *counted):
            assert conversation.messages[0].parts == [Text(f"Title: plan.pdf\n\n{TEXT}")]
        assert len(counted) == 1


async def test_pdf_in_a_tool_result_of_claude_code_is_read() -> None:
    api = APIS[0]
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    block = api.pdf(PLAN) | {"title": None, "context": "Read by a tool."}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "Read."}, block],
    }
    async with serving() as served:
        assert (
            api.text(await post(served, api.path, api.body("Read it.", [use], [result]))) == HELLO
        )
        (part,) = served.gateway.turns[0].conversation.messages[-1].parts
    assert isinstance(part, Result)
    assert part.parts == [Text("Read."), Text(f"Context: Read by a tool.\n\n{TEXT}")]


async def test_image_that_codex_left_out_is_named_to_the_user() -> None:
    """Codex does not send images to a model with only text in its profile."""
    omitted = {
        "type": "input_text",
        "text": "image content omitted because you do not support image input",
    }
    api = APIS[2]
    async with serving() as served:
        assert api.text(await post(served, api.path, api.body([omitted]))) == HELLO + make_notice(
            {"image"}
        )
        assert served.gateway.turns[0].conversation.messages[0].parts == [Media("image")]


async def test_chained_response_has_the_note_once() -> None:
    api = APIS[2]
    async with serving() as served:
        first = json.loads(await post(served, api.path, api.body([api.image()]) | {"store": True}))
        assert api.text(json.dumps(first)) == HELLO + make_notice({"image"})
        chained = api.body("And?") | {"previous_response_id": first["id"]}
        assert api.text(await post(served, api.path, chained)) == HELLO
        assert served.gateway.turns[1].conversation.messages[1].parts == [Text(HELLO)]


async def test_summary_has_no_note() -> None:
    """Each of the three compactions; the answer after one has the note, since its image is still
    there."""
    api = APIS[2]
    body = api.body([api.image()])
    async with serving() as served:
        compacted = json.loads(
            await post(served, "/v1/responses/compact", {"model": MODEL, "input": body["input"]})
        )
        trigger = {**body, "input": [*body["input"], {"type": "compaction_trigger"}]}
        triggered = json.loads(await post(served, api.path, trigger))
        managed = {
            **body,
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        }
        answered = json.loads(await post(served, api.path, managed))
        assert api.text(json.dumps(answered)) == HELLO + make_notice({"image"})
        summaries = [compacted["output"][-1], triggered["output"][-1], answered["output"][0]]
        assert [summary["type"] for summary in summaries] == ["compaction"] * 3
        for summary in summaries:
            await post(
                served, api.path, {**body, "input": [summary, {"role": "user", "content": "And?"}]}
            )
            texts = [
                part.text
                for message in served.gateway.turns[-1].conversation.messages
                for part in message.parts
                if isinstance(part, Text)
            ]
            assert HELLO in texts[0]
            assert "Note from the server" not in "".join(texts)


async def test_answer_has_no_note_if_notes_are_off() -> None:
    async with serving(config=FrontendConfig(media_notice=False)) as served:
        for api in APIS:
            assert api.text(await post(served, api.path, api.body([api.image()]))) == HELLO
