"""Tests that no field of a request of the vendors' SDKs, however deep, is taken without a word: it has
an effect, is refused, named in a header, or declared in the docs.

The test makes requests with each field of the SDKs' types, and finds the fields that change nothing.
"""

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NotRequired, Required, TypeAlias, Union, get_args, get_origin

import msgspec
import pytest
from typing_extensions import get_type_hints, is_typeddict

from schemas.errors import TurnwireError
from services.frontend.apis.responses.dialect import Responses
from tests.kit.bodies import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PNG,
    RESPONSES,
    USER,
    Api,
    Json,
    assistant,
    block,
    chat_call,
    chat_tool,
    function,
    function_call,
    message,
    text,
    tool,
    tool_use,
)

Wrap: TypeAlias = Callable[[Any], Json]
"""Makes a request of a value of one type."""

TEXTS: dict[str, tuple[str, str]] = {
    "arguments": ("{}", '{"a": 1}'),
    "call_id": ("call_1", "call_2"),
    "data": (PNG, PNG + PNG),
    "definition": ('start: "a"', 'start: "b"'),
    "effort": ("low", "high"),
    "file_data": (f"data:image/png;base64,{PNG}", f"data:image/png;base64,{PNG}{PNG}"),
    "file_url": ("https://a.example/a", "https://a.example/b"),
    "image_url": ("https://a.example/a", "https://a.example/b"),
    "name": ("look", "see"),
    "user_id": ("a_session_one", "a_session_two"),
    "tool_call_id": ("call_1", "call_2"),
    "tool_use_id": ("call_1", "call_2"),
    "url": ("https://a.example/a", "https://a.example/b"),
}
"""Values of fields that need a form, by the names of the fields."""
NUMBERS = {
    "budget_tokens": (1024, 2048),
    "max_tokens": (4096, 5000),
    "top_logprobs": (2, 3),
    "value": (1, 2),
}
_IMAGE = {"image_url": "https://a.example/a"}
_FILE = {"file_url": "https://a.example/a"}
_CHOSEN = {"type": "function", "name": "look"}
NEEDED: dict[str, Json] = {
    "ChatCompletionAssistantMessageParam": {"refusal": "one"},
    "CustomToolParam": {"name": "other"},
    "FunctionToolParam": {"name": "other"},
    "SystemMessageParam": {"content": "one"},
    "ToolFunction": {"name": "other"},
    "ChatCompletionAllowedToolsParam": {
        "tools": [{"type": "function", "function": {"name": "look"}}]
    },
    "ContextManagement": {"type": "compaction"},
    "FileFile": {"file_data": TEXTS["file_data"][0]},
    "ResponseInputFileContentParam": _FILE,
    "ResponseInputFileParam": _FILE,
    "ResponseInputImageContentParam": _IMAGE,
    "ResponseInputImageParam": _IMAGE,
    "ToolChoiceAllowedParam": {"tools": [_CHOSEN]},
}
"""Members that values of a type need here, though the SDK's type does not say so."""


def values_of(hint: Any, name: str = "") -> Iterator[Any]:
    """Some values of a type: two of texts and numbers, all of an enumeration, one of each type of
    a union, with only those members that it needs. None of an open file, which the SDK sends as
    text."""
    origin: Any = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Required, NotRequired) or "Annotated" in str(origin):
        yield from values_of(arguments[0], name)
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from values_of(each, name)
    elif origin is Literal:
        yield from arguments
    elif is_typeddict(hint):
        yield least_of(hint)
    elif hint in (Any, object):
        yield from ({"key": "one"}, {"key": "two"})
    elif hint is str:
        yield from TEXTS.get(name, ("one", "two"))
    elif hint is bool:
        yield from (True, False)
    elif hint is int:
        yield from NUMBERS.get(name, (2000, 3000))
    elif hint is float:
        yield from (0.5, 0.25)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        for value in values_of(arguments[1], name):
            yield {"7": value}
    elif is_list(hint, origin):
        for value in values_of(arguments[0], name):
            yield [value]


def least_of(hint: Any) -> Json:
    """A value of a `TypedDict` with only those members that it needs."""
    needed = NEEDED.get(hint.__name__.removeprefix("Beta"), {})
    least = {
        name: next(values_of(each, name))
        for name, each in get_type_hints(hint, include_extras=True).items()
        if is_required(each) and name not in needed
    }
    return least | needed


def is_required(hint: Any) -> bool:
    """Whether a value of its `TypedDict` must have the member."""
    origin: Any = get_origin(hint)
    return origin is Required


def is_list(hint: Any, origin: Any) -> bool:
    """Whether the values of a type are lists."""
    if "SequenceNotStr" in (getattr(hint, "__name__", "") or str(origin)):
        return True
    return isinstance(origin, type) and issubclass(origin, Iterable)


def dicts_in(hint: Any, wrap: Wrap) -> Iterator[tuple[Any, Wrap]]:
    """The `TypedDict`s inside a type, and how to make a request of a value of each. `wrap`: of a
    value of the type."""
    origin: Any = get_origin(hint)
    arguments = get_args(hint)
    if is_typeddict(hint):
        yield hint, wrap
    elif origin is Literal:
        return
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from dicts_in(arguments[1], lambda value: wrap({"7": value}))
    elif is_list(hint, origin):
        yield from dicts_in(arguments[0], lambda value: wrap([value]))
    else:
        for each in arguments:
            yield from dicts_in(each, wrap)


def places(root: Any, complete: Wrap) -> Iterator[tuple[Any, Wrap]]:
    """Every `TypedDict` of a request, once, and how to make a request of a value of it."""
    waiting = [(root, complete)]
    seen = {root.__name__}
    for hint, wrap in waiting:
        yield hint, wrap
        least = least_of(hint)
        for field, member in get_type_hints(hint, include_extras=True).items():
            for inner, inner_wrap in dicts_in(member, with_member(wrap, least, field)):
                if inner.__name__ not in seen:
                    seen.add(inner.__name__)
                    waiting.append((inner, inner_wrap))


def with_member(wrap: Wrap, least: Json, field: str) -> Wrap:
    return lambda value: wrap({**least, field: value})


def complete_messages(body: Json) -> Json:
    """A request of Messages with a call that its results may belong to."""
    turns = [USER, assistant(block("thinking", thinking="Hm."), text("a"))] * 3
    own = [with_role(each) for each in body.get("messages", ())]
    history = [*turns, USER, assistant(tool_use("call_1")), *own, USER]
    tools = [tool(), tool("see", defer_loading=True)]
    return {"model": "m", "max_tokens": 4096, "tools": tools, **body, "messages": history}


def with_role(sample: Json) -> Json:
    """A message with the role that its blocks need."""
    blocks = sample["content"] if isinstance(sample["content"], list) else []
    for each in blocks:
        kind = str(each["type"])
        if kind in ("tool_addition", "tool_removal"):
            return {**sample, "role": "system"}
        if kind in ("thinking", "redacted_thinking", "tool_use", "compaction"):
            return {**sample, "role": "assistant"}
    return sample


def complete_chat(body: Json) -> Json:
    calls: Json = {"role": "assistant", "tool_calls": [chat_call()]}
    if any(each["role"] == "function" for each in body.get("messages", ())):
        calls = {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}}
    tools: Json = {} if "functions" in body else {"tools": [chat_tool()]}
    return {
        "model": "m",
        **tools,
        **body,
        "messages": [USER, calls, *body.get("messages", ()), USER],
    }


def complete_responses(body: Json) -> Json:
    items = body.get("input", [])
    if isinstance(items, str):
        items = [message("user", items)]
    kinds = {str(item.get("type")).removesuffix("_output") for item in items}
    calls = [call for call in CALLS if call["type"] in kinds]
    tools = [function(), block("shell"), block("apply_patch")]
    if not kinds & {"additional_tools", "tool_search"}:  # whose first tools count
        tools.append(block("web_search"))
    plain = {"model": "m", "tools": tools, "include": ["message.output_text.logprobs"]}
    return {**plain, **body, "input": [USER, *(calls or CALLS[:1]), *items]}


SEARCHING = replace(RESPONSES, make_dialect=partial(Responses, ("web_search",)))
"""Responses of a server that searches the web."""
COMPLETE: dict[Api, Wrap] = {
    MESSAGES: complete_messages,
    CHAT: complete_chat,
    COMPLETIONS: dict,
    SEARCHING: complete_responses,
}
"""What adds to a request of each API the members that it needs."""
CALLS = [
    function_call(),
    block("custom_tool_call", call_id="call_1", name="look", input=""),
    block("local_shell_call", call_id="one", action={"command": ["ls"]}),
    block("shell_call", call_id="call_1", action={"commands": ["ls"]}),
    block("apply_patch_call", call_id="call_1", operation=block("delete_file", path="a")),
]


def effect(api: Api, body: Json) -> tuple[str, tuple[Any, ...]]:
    """What a request makes: the message of its refusal and what headers name as left out, or what
    reaches the other stages and the answer."""
    try:
        asked = api.parse(body)
    except TurnwireError as error:
        return error.info.message, ()
    facts: list[Any] = [msgspec.json.encode(asked.conversations, enc_hook=lambda _: "")]
    facts += [len(asked.conversations), asked.stream, asked.may_shorten, *asked.notes]
    facts += [repr(getattr(asked, name, None)) for name in ("edits", "compact")]
    shape: Any = getattr(asked, "shape", None)
    if hasattr(shape, "echo"):
        shape = msgspec.structs.replace(shape, echo={})
        names = ("background", "store", "context_management", "stream_id")
        facts += [repr(getattr(asked.request.body, name)) for name in names]
    return "left out" if asked.notes else "", (*facts, repr(shape))


def idle_members(api: Api, hint: Any, wrap: Wrap) -> Iterator[str]:
    """The members of a type that change nothing, whatever their value."""
    least = least_of(hint)
    for field, member in get_type_hints(hint, include_extras=True).items():
        values = list(values_of(member, field))
        if any(dicts_in(member, wrap)) or (field == "type" and len(values) == 1):
            continue  # it has members of its own, or says what the object is
        plain = least
        if is_required(member):
            if len(values) < 2:
                continue
            plain = {**least, field: values.pop(0)}
        usual = effect(api, wrap(plain))
        effects = {effect(api, wrap({**least, field: value})) for value in values}
        if effects == {usual} and usual[1]:
            yield field


def audit(api: Api, roots: Iterable[Any]) -> tuple[set[str], set[str]]:
    """The types with values that are refused, and the members that change nothing. An object that a
    header names as left out is not looked into. Types of the beta have the names of the API's."""
    refused: set[str] = set()
    idle: set[str] = set()
    known: dict[str, set[str]] = {}
    for root in roots:
        for hint, wrap in places(root, COMPLETE[api]):
            name = hint.__name__.removeprefix("Beta")
            members = set(get_type_hints(hint))
            if members <= known.get(name, set()):
                continue
            known.setdefault(name, set()).update(members)
            kind, facts = effect(api, wrap(least_of(hint)))
            if not facts:
                refused.add(name)
            elif not kind:
                idle.update(idle_members(api, hint, wrap))
    return refused, idle


DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
REFUSED = {"messages": 63, "chat": 1, "completions": 0, "responses": 11}
"""How many types are refused whole: of files, threads, containers, stored items, browsers."""


@pytest.fixture
def roots() -> dict[str, list[Any]]:
    """The types of whole requests in the SDKs, the betas' too."""
    from anthropic.types import beta as anthropic_beta
    from anthropic.types import message_count_tokens_params, message_create_params
    from openai.types import beta as openai_beta
    from openai.types import completion_create_params, responses
    from openai.types.beta import responses as beta_responses
    from openai.types.chat import completion_create_params as chat_params

    return {
        "messages": [
            message_create_params.MessageCreateParamsStreaming,
            message_count_tokens_params.MessageCountTokensParams,
            anthropic_beta.message_create_params.MessageCreateParamsStreaming,
            anthropic_beta.message_count_tokens_params.MessageCountTokensParams,
        ],
        "chat": [chat_params.CompletionCreateParamsStreaming],
        "completions": [completion_create_params.CompletionCreateParamsStreaming],
        "responses": [
            responses.response_create_params.ResponseCreateParamsStreaming,
            responses.response_compact_params.ResponseCompactParams,
            responses.input_token_count_params.InputTokenCountParams,
            openai_beta.response_create_params.ResponseCreateParamsStreaming,
            openai_beta.response_compact_params.ResponseCompactParams,
            beta_responses.input_token_count_params.InputTokenCountParams,
        ],
    }


def declared(api: str) -> set[str]:
    """The members that the docs name as without effect."""
    section = DIFFERENCES.read_text().partition("## Without effect")[2]
    lines = [line for line in section.splitlines() if line.lower().startswith(f"- {api}:")]
    return set(re.findall(r"`(\w+)`", lines[0]))


@pytest.mark.slow
@pytest.mark.parametrize("api", [MESSAGES, CHAT, COMPLETIONS, SEARCHING], ids=lambda api: api.name)
def test_fields_of_the_sdks_without_effect_are_the_declared_ones(
    api: Api, roots: dict[str, list[Any]]
) -> None:
    refused, idle = audit(api, roots[api.name])
    assert idle == declared(api.name)
    assert len(refused) == REFUSED[api.name], refused
