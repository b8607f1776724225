"""Tests that no field of the SDK's request type is lost: each is honoured, echoed, refused or
declared to have no effect. New fields of the SDK fail."""

import json
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import pytest

from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from tests.kit.bodies import Json, block, function, responses
from tests.kit.every import Cases


def understood(**fields: Any) -> ConvertedRequest:
    request = decode(json.dumps(responses(**fields)).encode())
    return Responses().convert(request, {}, counting=True)


def conversation_of(ask: ConvertedRequest) -> str:
    return msgspec.json.encode(ask.conversation).decode()


FORMAT = block("json_schema", name="n", schema={"type": "object"})
HONOURED: Json = {
    "input": "Bye.",
    "instructions": "Be brief.",
    "max_output_tokens": 99,
    "model": "other",
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"prewarm": True},
    "reasoning": {"effort": "low", "context": "all_turns"},
    "temperature": 0.5,
    "text": {"format": FORMAT, "verbosity": "low"},
    "tool_choice": "none",
    "tools": [function("f", parameters={}, description="d")],
    "top_p": 0.5,
}
"""Fields that change the conversation."""
OF_THE_ANSWER: Json = {
    "background": True,
    "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1",
    "store": False,
    "stream": True,
    "truncation": "auto",
}
"""Fields that change the handling around the turn."""
ECHOED: Json = {
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "top_logprobs": 3,
    "user": "u",
}
REFUSED: Json = {"conversation": "conv_1", "prompt": {"id": "pmpt_1"}}
IGNORED: Json = {
    "access_programs": {"cyber": "standard"},  # OpenAI's own programs
    "background_options": {"completion_window": "2h"},  # OpenAI's cheaper hours
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],  # named in the notes
    "image": {"context_compression": "auto"},  # images do not reach the prompt
    "moderation": {"model": "m"},  # there is no moderation
    "service_tier": "flex",  # there is one: the answer says `default`
    "stream_options": {"include_obfuscation": True},  # an answer may go without
}
"""Fields that are accepted without effect."""
NOT_ECHOED = {"input", "model", "reasoning", "include", "stream"}
"""Fields with an effect that the answer has in another form."""
READERS: dict[str, Callable[[ConvertedRequest], object]] = {
    "background": lambda ask: ask.request.body.background,
    "include": lambda ask: ask.shape.sealed,
    "previous_response_id": lambda ask: ask.request.body.previous_response_id,
    "store": lambda ask: ask.request.store,
    "stream": lambda ask: ask.stream,
    "truncation": lambda ask: ask.may_shorten,
}


def test_every_field_of_a_request_is_in_one_table() -> None:
    params = pytest.importorskip("openai.types.responses.response_create_params")
    tables = [HONOURED, OF_THE_ANSWER, ECHOED, REFUSED, IGNORED]
    named = set(get_type_hints(params.ResponseCreateParamsStreaming))
    assert set().union(*tables) == named
    assert sum(len(table) for table in tables) == len(named)


def test_each_field_has_the_effect_of_its_table(cases: Cases) -> None:
    plain = understood()
    for field, value in (HONOURED | OF_THE_ANSWER | ECHOED | IGNORED).items():
        with cases.case(field=field):
            ask = understood(**{field: value})
            changed = conversation_of(ask) != conversation_of(plain)
            assert changed == (field in HONOURED)
            if field in OF_THE_ANSWER:
                assert READERS[field](ask) != READERS[field](plain)
            if field not in IGNORED.keys() | NOT_ECHOED:
                assert json.loads(msgspec.json.encode(ask.request.echo))[field] == value
