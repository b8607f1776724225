"""Tests that the stored input of Responses fits the types of the OpenAI SDK."""

import json
from typing import TYPE_CHECKING, Any

import msgspec

from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items

if TYPE_CHECKING:
    pass


def test_stored_input_fits_the_sdks_strict_types() -> None:
    from openai.types.responses import ResponseItemList

    image = {"type": "input_image", "image_url": "https://a.example/x.png"}
    seen = [{"type": "input_image", "detail": None}]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Ho."},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "custom_tool_call", "call_id": "d", "name": "n", "input": "{}"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
        {"type": "reasoning", "encrypted_content": "e"},
        {"type": "tool_search_call", "call_id": "s", "arguments": {}},
        {"type": "tool_search_output", "call_id": "s", "tools": []},
        {"type": "shell_call", "call_id": "t", "action": {"commands": ["ls"]}},
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Ho."}]},
        {"type": "function_call_output", "call_id": "c", "output": seen},
        {"type": "additional_tools", "tools": [{"type": "custom", "name": "x"}]},
    ]
    stored = stored_items(decode(json.dumps({"input": items}).encode()), "t1")
    listed = {"object": "list", "data": stored, "first_id": "a", "last_id": "b", "has_more": False}
    found = ResponseItemList.model_validate(json.loads(msgspec.json.encode(listed)))
    assert [item.type for item in found.data] == [item.get("type", "message") for item in items]
