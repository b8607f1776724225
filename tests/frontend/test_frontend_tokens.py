"""Tests counting, tokenizing and detokenizing over HTTP."""

from typing import Any

from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import (
    MODEL,
    USER,
    Json,
    assistant,
    chat,
    chat_call,
    chat_result,
    message,
    tool,
)
from tests.kit.every import Cases
from tests.kit.frontend import Served, serving


async def post(served: Served, path: str, body: Json) -> Any:
    reply = await served.post(path, body)
    assert reply.status == 200, reply.text
    return reply.json


async def test_text_is_tokenized_and_ids_are_detokenized(served: Served, cases: Cases) -> None:
    answer = {"count": 2, "max_model_len": 131072, "tokens": [1, 2], "token_strs": None}
    for body, special in (
        ({"prompt": "a bb"}, True),
        ({"text": "a bb", "add_special_tokens": False}, False),
        ({"prompt": "a bb", "messages": [USER]}, True),
    ):
        for path in ("/tokenize", "/v1/tokenize"):
            with cases.case(path, body):
                document = await post(served, path, {"model": "claude-alias", **body})
                assert document == answer
                assert served.gateway.tokenized[-1] == (MODEL, "a bb", None, special)
    for path in ("/detokenize", "/v1/detokenize"):
        document = await post(served, path, {"model": MODEL, "tokens": [1, 3]})
        assert document == {"prompt": "x xxx"}, path


async def test_invalid_request_is_refused(served: Served, cases: Cases) -> None:
    small = "tokens.0: Input should be greater than or equal to 0"
    for path, fields, reason in (
        ("/v1/tokenize", {}, "prompt: Field required (or `text`, or `messages`)"),
        ("/v1/detokenize", {"tokens": ["x"]}, "tokens.0: Input should be a valid integer"),
        ("/v1/detokenize", {"tokens": [-1]}, small),
    ):
        with cases.case(path=path, fields=fields):
            reply = await served.post(path, {"model": MODEL, **fields})
            assert (reply.status, reply.json["error"]["message"]) == (400, reason)


async def test_count_reports_context_management(served: Served) -> None:
    plain = await post(served, "/v1/messages/count_tokens", chat())
    managed = await post(
        served, "/v1/messages/count_tokens?beta=true", chat(context_management={"edits": []})
    )
    assert plain == {"input_tokens": 4321}
    assert managed == {"input_tokens": 4321, "context_management": {"original_input_tokens": 4321}}
    assert served.lines[-1]["prompt_tokens"] == 4321


async def test_conversation_is_tokenized(served: Served, cases: Cases) -> None:
    document = await post(served, "/v1/tokenize", chat(system="be brief", tools=[tool()]))
    assert document["count"] == len(document["tokens"])
    ((model, text, conversation, _),) = served.gateway.tokenized
    assert (model, text) == (MODEL, None)
    assert conversation is not None
    assert conversation.system[0].text == "be brief"
    assert [tool.name for tool in conversation.tools] == ["look"]
    for body in (
        chat(USER, assistant(None, tool_calls=[chat_call()])),
        chat(message("developer", "be brief"), USER),
        chat(message("developer", "half of a pair: \ud83d"), USER),
        chat(chat_result("call_9", "alone")),
    ):
        with cases.case(body):
            await post(served, "/tokenize", body)
            conversation = served.gateway.tokenized[-1][2]
            assert conversation is not None
            assert not conversation.continues_answer


async def test_counts_of_this_server_are_not_charged_to_the_client() -> None:
    asked = {
        "model": MODEL,
        "input": "hi",
        "context_management": [{"type": "compaction", "compact_threshold": 100_000}],
    }
    async with serving(config=FrontendConfig(key_requests_per_minute=2)) as served:
        for _ in range(2):
            assert (await served.post("/v1/responses", asked)).status == 200
        assert len(served.gateway.counted) == 2
        counts = [await served.post("/v1/messages/count_tokens", chat()) for _ in range(3)]
        assert [count.status for count in counts] == [200, 200, 429]
