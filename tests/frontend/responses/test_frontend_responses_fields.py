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

from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from tests.frontend.responses.responses_samples import Sampler, leaves_in
from tests.kit.bodies import RESPONSES, Json, block, function, responses, user
from tests.kit.every import Cases


def members(union: Any) -> dict[str, Any]:
    """The types of a union, by their names."""
    return {member.__name__: member for member in get_args(union)}


@pytest.fixture
def items() -> dict[str, Any]:
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    return members(ResponseInputItemParam)


@pytest.fixture
def tools() -> dict[str, Any]:
    from openai.types.responses.tool_param import ToolParam

    return members(ToolParam)


class OpenBox:
    """A sealer that opens every blob as a summary."""

    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\n" + blob


def understood(*items: Json, **fields: Any) -> ConvertedRequest:
    request = decode(json.dumps(responses(*items, **fields), ensure_ascii=False).encode())
    request = request.with_references({id: stored(id) for id in request.references})
    return Responses().convert(request, {}, sealer=OpenBox(), counting=True)


def stored(name: str) -> Raw:
    return Raw(json.dumps(user(name), ensure_ascii=False).encode())


def conversation_of(ask: ConvertedRequest) -> str:
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


def under(place: str, names: str) -> set[str]:
    """The paths of these fields of a part."""
    return {f"{place}.{name}" for name in names.split()}


_ANNOTATIONS = "container_id end_index file_id filename index start_index title url"
_LOGPROBS = (
    "bytes[] logprob token top_logprobs[].bytes[] top_logprobs[].logprob top_logprobs[].token"
)
_SVG_USAGE = "input_tokens model output_tokens reasoning_tokens total_tokens"
KEPT_ONLY: dict[str, set[str]] = {
    "EasyInputMessageParam": _FILES,
    "Message": _FILES,
    "ResponseOutputMessageParam": {
        "id",
        *under("content[].annotations[]", _ANNOTATIONS),
        *under("content[].logprobs[]", _LOGPROBS),
    },
    "ResponseFileSearchToolCallParam": {"id", *under("results[]", "attributes file_id score")},
    "ResponseComputerToolCallParam": {
        *("call_id", "id"),
        *under("pending_safety_checks[]", "code id message"),
    },
    "ComputerCallOutput": {
        *("call_id", "id", "output.file_id"),
        *under("acknowledged_safety_checks[]", "code id message"),
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
        *("error.type", "id", "result", "size"),
        *under("svg_usage", _SVG_USAGE),
    },
    "ResponseCodeInterpreterToolCallParam": {"container_id", "id"},
    "LocalShellCall": set(),
    "LocalShellCallOutput": set(),
    "ShellCall": {
        *_CALLER,
        "environment.container_id",
        *under("environment.skills[]", "description name path"),
    },
    "ShellCallOutput": {"id", "max_output_length", *_CALLER},
    "ApplyPatchCall": _CALLER,
    "ApplyPatchCallOutput": {"id", *_CALLER},
    "McpListTools": {
        *("error", "id", "server_label"),
        *under("tools[]", "annotations description input_schema name"),
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


def test_every_field_of_an_item_reaches_the_prompt_or_the_store(
    items: dict[str, Any], cases: Cases
) -> None:
    assert len(items) > 30
    for name, member in items.items():
        with cases.case(item=name):
            check_item(name, member)


def check_item(name: str, member: Any) -> None:
    sampler = Sampler()
    texts = []
    for sample in sampler.of(member):
        ask = understood(sample)
        texts.append(conversation_of(ask))
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


def _kept(sample: Json) -> Json:
    """The expected stored item: everything, with a message's string as its one part."""
    return {
        key: value
        for key, value in sample.items()
        if not (key == "content" and isinstance(value, str))
    }


def test_table_of_items_has_only_existing_fields(items: dict[str, Any]) -> None:
    assert KEPT_ONLY.keys() == items.keys()
    for name, member in items.items():
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
    "ApplyPatchToolParam",
}
"""Tools of which every field reaches the prompt."""


def test_every_field_of_a_tool_reaches_the_prompt_or_the_echo(
    tools: dict[str, Any], cases: Cases
) -> None:
    assert tools.keys() > _SERVED
    for name, member in tools.items():
        sampler = Sampler()
        texts = []
        for sample in sampler.of(member):
            with cases.case(tool=name, sample=sample):
                ask = understood(tools=[sample])
                texts.append(conversation_of(ask))
                (echoed,) = json.loads(msgspec.json.encode(ask.request.echo["tools"]))
                assert echoed.items() >= sample.items()
                told = bool(ask.conversation.tools) != bool(ask.notes)
                assert told or sample.get("execution") == "server"
        if name in _SERVED:
            with cases.case(tool=name):
                assert missing(sampler, texts) - _ECHOED_ONLY.get(name, set()) == set()


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


def test_refused_fields_are_refused() -> None:
    for field, value in REFUSED.items():
        assert RESPONSES.refusal(**{field: value}).param == field
