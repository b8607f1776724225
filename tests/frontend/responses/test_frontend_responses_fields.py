"""Tests that no field of the SDK's request types is lost: each is honoured, echoed, or kept in the
stored item.

Samples of every type are made from the SDK's definitions, with a different value in every leaf. A
field that is neither in the conversation nor in a table here fails, and so do new fields of the
SDK.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Raw
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam

from schemas.errors import Invalid
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from tests.frontend.responses.responses_samples import Sampler, leaves_in

ITEMS = {member.__name__: member for member in get_args(ResponseInputItemParam)}
TOOLS = {member.__name__: member for member in get_args(ToolParam)}


class OpenBox:
    """A sealer that opens every blob as a summary."""

    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\n" + blob


def understood(body: dict[str, Any]) -> ConvertedRequest:
    request = decode(
        json.dumps({"model": "m", "input": "Hi.", **body}, ensure_ascii=False).encode()
    )
    request = request.with_references({id: stored(id) for id in request.references})
    return Responses().convert(request, {}, sealer=OpenBox(), counting=True)


def stored(name: str) -> Raw:
    return Raw(json.dumps({"role": "user", "content": name}, ensure_ascii=False).encode())


def told(ask: ConvertedRequest) -> str:
    return msgspec.json.encode(ask.conversation).decode()


def missing(sampler: Sampler, texts: Iterable[str]) -> set[str]:
    seen = {sampler.leaves.get(leaf) for text in texts for leaf in leaves_in(text)}
    return set(sampler.leaves.values()) - seen


_FILES = {
    f"{where}[].{field}"
    for where in ("content", "output")
    for field in ("file_data", "file_id", "file_url")
}
"""Fields of files that do not reach the prompt: data wins over a URL, and both over an id; only the
kind of data is kept."""
_CALLER = {"caller.caller_id"}
"""The caller, set for programs that ran on OpenAI's servers."""

KEPT_ONLY: dict[str, set[str]] = {
    "EasyInputMessageParam": _FILES,
    "Message": _FILES,
    "ResponseOutputMessageParam": {
        *("id", "content[].annotations[].container_id", "content[].annotations[].end_index"),
        *(
            "content[].annotations[].file_id",
            "content[].annotations[].filename",
            "content[].annotations[].index",
        ),
        *(
            "content[].annotations[].start_index",
            "content[].annotations[].title",
            "content[].annotations[].url",
        ),
        *(
            "content[].logprobs[].bytes[]",
            "content[].logprobs[].logprob",
            "content[].logprobs[].token",
        ),
        *(
            "content[].logprobs[].top_logprobs[].bytes[]",
            "content[].logprobs[].top_logprobs[].logprob",
        ),
        "content[].logprobs[].top_logprobs[].token",
    },
    "ResponseFileSearchToolCallParam": {
        "id",
        "results[].attributes",
        "results[].file_id",
        "results[].score",
    },
    "ResponseComputerToolCallParam": {
        *("call_id", "id", "pending_safety_checks[].code", "pending_safety_checks[].id"),
        "pending_safety_checks[].message",
    },
    "ComputerCallOutput": {
        *("acknowledged_safety_checks[].code", "acknowledged_safety_checks[].id"),
        *("acknowledged_safety_checks[].message", "call_id", "id", "output.file_id"),
    },
    "ResponseFunctionWebSearchParam": {"id"},
    "ResponseFunctionToolCallParam": _CALLER,
    "FunctionCallOutput": {"id", *_CALLER, *_FILES},
    "ToolSearchCall": set(),
    "ResponseToolSearchOutputItemParamParam": {"id"},
    "AdditionalTools": {"id"},
    "ResponseConfigurationUpdateItemParamParam": {"id", "text.format.description"},
    "ResponseReasoningItemParam": {"summary[].text"},  # stands in where there is no text
    "ResponseCompactionItemParamParam": {"id"},
    "ImageGenerationCall": {
        *("error.type", "id", "result", "size", "svg_usage.input_tokens", "svg_usage.model"),
        *("svg_usage.output_tokens", "svg_usage.reasoning_tokens", "svg_usage.total_tokens"),
    },
    "ResponseCodeInterpreterToolCallParam": {"container_id", "id"},
    "LocalShellCall": set(),
    "LocalShellCallOutput": set(),
    "ShellCall": {
        *(
            *_CALLER,
            "environment.container_id",
            "environment.skills[].description",
            "environment.skills[].name",
        ),
        "environment.skills[].path",
    },
    "ShellCallOutput": {"id", "max_output_length", *_CALLER},
    "ApplyPatchCall": _CALLER,
    "ApplyPatchCallOutput": {"id", *_CALLER},
    "McpListTools": {
        *(
            "error",
            "id",
            "server_label",
            "tools[].annotations",
            "tools[].description",
            "tools[].input_schema",
        ),
        "tools[].name",
    },
    "McpApprovalRequest": {"arguments", "id", "name", "server_label"},
    "McpApprovalResponse": {"approval_request_id", "id", "reason"},
    "McpCall": {"approval_request_id", "id"},
    "ResponseCustomToolCallOutputParam": {"id", *_CALLER, *_FILES},
    "ResponseCustomToolCallParam": _CALLER,
    "CompactionTrigger": {"id"},
    "ItemReference": set(),
    "Program": {"call_id", "fingerprint", "id"},
    "ProgramOutput": {"call_id", "id"},
}
"""Fields of each item that never reach a prompt, such as ids. They are in the stored item."""

CHOICES = {
    "type": "tells what it is",
    "role": "honoured",
    "execution": "honoured: the client's searches only are calls",
    "effort": "honoured in configuration_update",
    "verbosity": "honoured in configuration_update",
    "strict": "honoured in configuration_update",
    "status": "kept; a failed patch is an error to the model",
    "phase": "kept: no template reads it",
    "detail": "kept: images are not shown",
    "mode": "kept: prompt_cache_breakpoint asks for what is done unasked",
    "ttl": "kept: as mode",
    "async": "kept: the client decides how it runs a tool",
    "approve": "kept: there are no MCP servers here",
    "button": "text of the history",
    "attributes": "kept: labels of a file",
    "action": "kept: of an image that another server made",
    "background": "kept: as action",
    "output_format": "kept: as action",
    "quality": "kept: as action",
    "size": "kept: as action",
    "moderation_stage": "kept: as action",
}
"""Fields with few values, which a sample cannot identify by value, by the last part of their
path."""


@pytest.mark.parametrize("name", ITEMS)
def test_every_field_of_an_item_reaches_the_prompt_or_the_store(name: str) -> None:
    sampler = Sampler()
    samples = sampler.of(ITEMS[name])
    texts = []
    for sample in samples:
        ask = understood({"input": [sample]})
        texts.append(told(ask))
        if name != "ItemReference":
            (item,) = stored_items(ask.request, "t1")
            assert json.loads(bytes(item)).items() >= _kept(sample).items()
    lost = {
        path
        for path in missing(sampler, texts)
        if not path.startswith("tools[]") or name == "McpListTools"
    }
    assert lost - KEPT_ONLY[name] == set()
    choices = {
        path.rpartition(".")[2] for path in sampler.choices if not path.startswith("tools[]")
    }
    assert choices <= CHOICES.keys()


def _kept(sample: dict[str, Any]) -> dict[str, Any]:
    """The expected stored item: everything, with a message's string as its one part."""
    return {
        key: value
        for key, value in sample.items()
        if not (key == "content" and isinstance(value, str))
    }


def test_table_of_items_has_only_existing_fields() -> None:
    assert KEPT_ONLY.keys() == ITEMS.keys()
    for name, member in ITEMS.items():
        sampler = Sampler()
        sampler.of(member)
        assert KEPT_ONLY[name] - _FILES <= set(sampler.leaves.values()), name


_ECHOED_ONLY = {
    "FunctionToolParam": {"output_schema"},
    "NamespaceToolParam": {"tools[].output_schema"},
}
_SERVED = {
    "FunctionToolParam",
    "CustomToolParam",
    "NamespaceToolParam",
    "ToolSearchToolParam",
    "LocalShell",
}
_SERVED |= {"FunctionShellToolParam", "ApplyPatchToolParam"}


@pytest.mark.parametrize("name", TOOLS)
def test_every_field_of_a_tool_reaches_the_prompt_or_the_echo(name: str) -> None:
    sampler = Sampler()
    texts = []
    for sample in sampler.of(TOOLS[name]):
        ask = understood({"tools": [sample]})
        texts.append(told(ask))
        (echoed,) = json.loads(msgspec.json.encode(ask.request.echo["tools"]))
        assert echoed.items() >= sample.items()
        assert (
            bool(ask.conversation.tools) != bool(ask.notes) or sample.get("execution") == "server"
        )
    if name in _SERVED - {"FunctionShellToolParam"}:
        assert missing(sampler, texts) - _ECHOED_ONLY.get(name, set()) == set()


TEXT = {
    "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
    "verbosity": "low",
}
TOOL = {"type": "function", "name": "f", "parameters": {}, "strict": False, "description": "d"}

HONOURED: dict[str, Any] = {
    "input": "Bye.",
    "instructions": "Be brief.",
    "max_output_tokens": 99,
    "model": "other",
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"prewarm": True},
    "reasoning": {"effort": "low", "context": "all_turns"},
    "temperature": 0.5,
    "text": TEXT,
    "tool_choice": "none",
    "tools": [TOOL],
    "top_p": 0.5,
}
"""Fields that change the conversation."""
OF_THE_ANSWER: dict[str, Any] = {
    "background": True,
    "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1",
    "store": False,
    "stream": True,
    "truncation": "auto",
}
"""Fields that change the handling around the turn."""
ECHOED: dict[str, Any] = {
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "top_logprobs": 3,
    "user": "u",
}
REFUSED: dict[str, Any] = {"conversation": "conv_1", "prompt": {"id": "pmpt_1"}}
IGNORED: dict[str, Any] = {
    "access_programs": {"cyber": "standard"},  # OpenAI's own programs
    "background_options": {"completion_window": "2h"},  # OpenAI's cheaper hours
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],  # named in the notes
    "image": {"context_compression": "auto"},  # images do not reach the prompt
    "moderation": {"model": "m"},  # there is no moderation
    "service_tier": "flex",  # there is one: the answer says `default`
    "stream_options": {"include_obfuscation": True},  # an answer may go without
}
"""Fields that are accepted without effect."""


def test_every_field_of_a_request_is_in_one_table() -> None:
    tables = [HONOURED, OF_THE_ANSWER, ECHOED, REFUSED, IGNORED]
    assert set().union(*tables) == set(get_type_hints(ResponseCreateParamsStreaming))
    assert sum(len(table) for table in tables) == len(set().union(*tables))


@pytest.mark.parametrize("field", HONOURED)
def test_supported_fields_change_the_conversation(field: str) -> None:
    assert told(understood({field: HONOURED[field]})) != told(understood({}))


@pytest.mark.parametrize("field", OF_THE_ANSWER)
def test_fields_of_the_answer_have_an_effect(field: str) -> None:
    value = OF_THE_ANSWER[field]
    ask, plain = understood({field: value}), understood({})
    assert told(ask) == told(plain)
    readers: dict[str, Callable[[ConvertedRequest], object]] = {
        "background": lambda ask: ask.request.body.background,
        "include": lambda ask: ask.shape.sealed,
        "previous_response_id": lambda ask: ask.request.body.previous_response_id,
        "store": lambda ask: ask.request.store,
        "stream": lambda ask: ask.stream,
        "truncation": lambda ask: ask.may_shorten,
    }
    assert readers[field](ask) != readers[field](plain)


@pytest.mark.parametrize("field", ECHOED)
def test_echoed_fields_are_echoed(field: str) -> None:
    assert understood({field: ECHOED[field]}).request.echo[field] == ECHOED[field]
    assert told(understood({field: ECHOED[field]})) == told(understood({}))


ALSO_ECHOED = [
    "background",
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "previous_response_id",
]
ALSO_ECHOED += [
    "prompt_cache_key",
    "prompt_cache_options",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
]
ALSO_ECHOED += ["truncation"]


@pytest.mark.parametrize("field", ALSO_ECHOED)
def test_supported_fields_are_echoed(field: str) -> None:
    value = {**HONOURED, **OF_THE_ANSWER}[field]
    echo = json.loads(msgspec.json.encode(understood({field: value}).request.echo))
    assert echo[field] == value


@pytest.mark.parametrize("field", REFUSED)
def test_refused_fields_are_refused(field: str) -> None:
    with pytest.raises(Invalid) as refused:
        decode(json.dumps({"model": "m", "input": "Hi.", field: REFUSED[field]}).encode())
    assert refused.value.info.param == field


@pytest.mark.parametrize("field", IGNORED)
def test_ignored_fields_are_accepted_without_effect(field: str) -> None:
    assert told(understood({field: IGNORED[field]})) == told(understood({}))
