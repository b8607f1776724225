"""Responses requests: any body is parsed, encodable for bus and store, and echoed on single lines
of its stream, or refused with `Invalid`.

Layout: counting or not; then the body.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec

from fuzz.bodies import SCALARS, Mutator
from schemas.errors import Invalid, NotFound
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    Prepared,
    TurnEvent,
    Usage,
)
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.apis.shared.shared_errors import openai_error
from services.frontend.content.image import without_images
from services.frontend.turns.interfaces import AnswerInfo

_encoder: Final = msgspec.json.Encoder()
_WORDS: Final = tuple(
    """
    auto none required user assistant system developer message reasoning input_text output_text
    refusal summary_text reasoning_text input_image input_file function custom namespace tool_search
    client server local_shell shell apply_patch web_search mcp allowed_tools grammar lark regex
    json_object json_schema text item_reference compaction compaction_trigger minimal high all_turns
    current_turn detailed disabled data:image/png;base64,AAAA reasoning.encrypted_content
    message.output_text.logprobs exec create_file delete_file
    """.split()  # noqa: SIM905
)
_KEYS: Final = tuple(
    """
    model input instructions tools tool_choice type role content text id call_id name namespace
    arguments output summary encrypted_content status phase image_url file_id file_data file_url
    filename action commands operation path diff execution reasoning effort context generate_summary
    format schema strict verbosity parameters description defer_loading definition syntax mode
    include max_output_tokens temperature top_p top_logprobs truncation store stream background
    previous_response_id conversation prompt metadata prompt_cache_key prompt_cache_options prewarm
    generate stream_id context_management logit_bias stop seed top_k nvext chat_template_kwargs
    environment results
    """.split()  # noqa: SIM905
)
_ITEMS: Final[tuple[dict[str, Any], ...]] = (
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "hi"},
            {"type": "input_image", "image_url": "data:,"},
        ],
    },
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "ho"}, {"type": "refusal", "refusal": "no"}],
    },
    {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": "e",
    },
    {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "namespace": "ns"},
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_file", "file_data": "AAAA"}],
    },
    {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "x"},
    {
        "type": "local_shell_call",
        "id": "l",
        "call_id": "e",
        "action": {"type": "exec", "command": ["ls"]},
    },
    {
        "type": "shell_call_output",
        "call_id": "f",
        "output": [{"stdout": "o", "outcome": {"exit_code": 1}}],
    },
    {"type": "apply_patch_call", "call_id": "g", "operation": {"type": "delete_file", "path": "x"}},
    {
        "type": "tool_search_call",
        "call_id": "h",
        "arguments": {"query": "q"},
        "execution": "client",
    },
    {
        "type": "tool_search_output",
        "call_id": "h",
        "tools": [{"type": "function", "name": "found"}],
    },
    {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "custom", "name": "more"}],
    },
    {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
    {"type": "compaction", "encrypted_content": "mine"},
    {"type": "item_reference", "id": "known"},
    {"type": "web_search_call", "id": "w", "action": {"query": "q"}},
    {"type": "mcp_call", "id": "m", "name": "n", "arguments": "{}", "output": "o"},
)
_TOOLS: Final = (
    {"type": "function", "name": "n", "parameters": {"type": "object"}, "defer_loading": True},
    {
        "type": "custom",
        "name": "p",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    },
    {
        "type": "namespace",
        "name": "ns",
        "description": "d",
        "tools": [{"type": "function", "name": "n"}],
    },
    {"type": "tool_search", "execution": "client"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "web_search", "external_web_access": True},
)
_mutator: Final = Mutator(
    _KEYS, (*SCALARS, *_WORDS, *_ITEMS, *_TOOLS, {"type": "compaction_trigger"})
)
_TURN: Final[tuple[TurnEvent, ...]] = (
    *(BlockStart(0, "reasoning"), Delta(0, 0, "t"), BlockStop(0, seal="s")),
    *(BlockStart(1, "text"), Delta(1, 0, "a\n\nb"), BlockStop(1)),
    *(BlockStart(2, "tool_use", "n", "c"), Delta(2, 0, '{\n\n"a": 1}'), BlockStop(2)),
    *(BlockStart(3, "tool_use", "tool_search", "d"), Delta(3, 0, '{\n\n"a": 1}'), BlockStop(3)),
    Finish(FinishReason.STOP, 4, Usage(1, 0, 1)),
)


class _Sealer:
    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\nsummary" if blob == "mine" else None


def one(data: bytes) -> None:
    """Raises any exception but `Invalid` and `NotFound`, and AssertionError where an event is not
    one line of JSON."""
    counting = bool(data[:1] and data[0] & 1)
    references = {"known": msgspec.Raw(_encoder.encode(_ITEMS[0]))}
    try:
        request = decode(data[1:]).with_references(references)
        ask = Responses().convert(
            request, {"user-agent": "fuzz"}, sealer=_Sealer(), counting=counting
        )
    except (Invalid, NotFound) as error:
        _encoder.encode(openai_error(error.info))
        return
    _encoder.encode(without_images(ask.conversation))
    _encoder.encode(stored_items(request, "t1"))
    renderer = ask.renderer(AnswerInfo("t1", "req", ask.request.model, 1))
    rendered = renderer.start([Prepared(1, 1)]) + renderer.events(_TURN)
    for number, payload in enumerate(payloads(rendered)):
        if json.loads(payload)["sequence_number"] != number:
            raise AssertionError(payload)


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body, sometimes counted."""
    head = data[:1] if chance.random() < 0.95 else bytes([chance.randrange(2)])
    return head + _mutator.mutate(
        data[1:], chance, lambda: chance.choice([seed for _, seed in seeds()])[1:]
    )


def seeds() -> Iterator[tuple[str, bytes]]:
    """A request with every field, and small ones with each kind of item."""
    whole = {
        "model": "m",
        "input": list(_ITEMS),
        "instructions": "i",
        "tools": _TOOLS,
        "tool_choice": "required",
        "reasoning": {"effort": "high", "summary": "auto", "context": "all_turns"},
        "include": list(_WORDS[-5:-3]),
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
        "stop": ["x"],
        "temperature": 1,
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "prompt_cache_options": {"prewarm": True},
        "truncation": "auto",
        "context_management": [{"type": "compaction"}],
        "logit_bias": {"5": 1},
    }
    yield "whole", b"\1" + json.dumps(whole, indent=1).encode()
    yield (
        "trigger",
        b"\0"
        + json.dumps({"model": "m", "input": [_ITEMS[0], {"type": "compaction_trigger"}]}).encode(),
    )
    for number, item in enumerate(_ITEMS):
        yield (
            f"item-{number}",
            b"\1" + json.dumps({"model": "m", "input": [_ITEMS[0], item]}).encode(),
        )
