"""One request for each operation that takes a body: what a reader tries first."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MODEL = "your-model"
_WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_ASKED = "What is the weather in Paris?"

EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "/v1/messages": {
            "model": MODEL,
            "max_tokens": 1024,
            "system": "You are a helpful agent.",
            "messages": [
                {"role": "user", "content": _ASKED},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "I should look.", "signature": ""},
                        {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "Paris"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "18 degrees, sunny"}],
                },
            ],
            "tools": [{"name": "get_weather", "description": "Current weather.", "input_schema": _WEATHER}],
            "thinking": {"type": "adaptive"},
        },
        "/v1/messages/count_tokens": {"model": MODEL, "messages": [{"role": "user", "content": _ASKED}]},
        "/v1/chat/completions": {
            "model": MODEL,
            "messages": [{"role": "user", "content": _ASKED}],
            "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _WEATHER}}],
        },
        "/v1/completions": {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 64},
        "/v1/responses": {
            "model": MODEL,
            "input": _ASKED,
            "tools": [{"type": "function", "name": "get_weather", "parameters": _WEATHER, "strict": False}],
            "reasoning": {"effort": "medium"},
        },
        "/v1/responses/compact": {"model": MODEL, "input": _ASKED},
        "/v1/responses/input_tokens": {"model": MODEL, "input": _ASKED},
        "/v1/tokenize": {"model": MODEL, "prompt": _ASKED},
        "/v1/detokenize": {"model": MODEL, "tokens": [9707, 11, 1879]},
    }
)
"""By path; those without `/v1` are as those with it."""


def example(path: str) -> Any:
    """The request for a path."""
    return EXAMPLES[path if path in EXAMPLES else f"/v1{path}"]
