"""Tests Chat Completions and Completions with the OpenAI SDK, with strict parsing, over a real
socket."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from schemas.errors import ContextOverflow, EngineFailed, ErrorInfo, ErrorKind, Invalid, Overloaded
from schemas.events import Failed, TurnEvent
from services.preprocessor.limit import limit_output
from tests.frontend.chat.test_frontend_chat_stream import CASES, Case, load
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, Served, serving

HI: Any = [{"role": "user", "content": "hi"}]
FUNCTIONS: Any = [
    {"type": "function", "function": {"name": name}} for name in ("look", "apply_patch")
]
OWN_IDS = ("call_without_an_id", "reasoning_details")
"""Cases with ids derived from the turn's id, which differs here."""
PATHS = [
    path
    for path in CASES
    if load(path).choices == 1 and not load(path).failed() and path.stem not in OWN_IDS
]


def client(served: Served, *, strict: bool = True) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="k", max_retries=0, _strict_response_validation=strict
    )


def request(case: Case) -> dict[str, Any]:
    """The request for the form of this case."""
    shape = case.shape
    custom = [{"type": "custom", "custom": {"name": name}} for name in sorted(shape.freeform)]
    extra: dict[str, Any] = {"service_tier": shape.service_tier} if shape.service_tier else {}
    if shape.reasoning == "inline":
        extra["separate_reasoning"] = False
    if shape.reasoning == "omitted":
        extra["include_reasoning"] = False
    headers = {
        "x-turnwire-tool-dispatch": str(int(case.dispatch)),
        "x-turnwire-reasoning-dispatch": str(int(case.dispatch_reasoning)),
        "x-turnwire-reasoning-details": str(int(shape.details)),
        "x-turnwire-reasoning-field": shape.reasoning,
    }
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": HI,
        "extra_body": extra,
        "extra_headers": headers,
    }
    if shape.legacy:
        return asked | {"functions": [{"name": "look"}]}
    tools = [
        *custom,
        *(tool for tool in FUNCTIONS if tool["function"]["name"] not in shape.freeform),
    ]
    return asked | {"tools": tools, **({"logprobs": True} if shape.logprobs else {})}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_sdk_parses_every_transcript_strictly(path: Path) -> None:
    case = load(path)
    (wanted,) = json.loads(path.with_suffix(".document.json").read_text())["choices"]
    # Streamed freeform calls are native, but not in the SDK's types.
    strict = not case.shape.freeform
    gateway = FakeGateway(lambda: [[event] for _, events in case.batches for event in events])
    async with (
        serving(gateway) as served,
        client(served) as sdk,
        client(served, strict=strict) as reader,
    ):
        whole = await sdk.chat.completions.create(**request(case))
        options: Any = {"include_usage": True}
        chunks = [
            each
            async for each in await reader.chat.completions.create(
                **request(case), stream=True, stream_options=options
            )
        ]
        state = ChatCompletionStreamState(input_tools=openai.omit)
        for each in chunks:
            state.handle_chunk(each)
    streamed = state.current_completion_snapshot
    message = wanted["message"]
    assert {key: whole.choices[0].message.to_dict().get(key) for key in message} == message
    assert (
        whole.choices[0].finish_reason
        == streamed.choices[0].finish_reason
        == wanted["finish_reason"]
    )
    assert streamed.choices[0].message.content == (message["content"] or "")
    assert _calls(streamed.choices[0].message.to_dict()) == message.get("tool_calls", [])
    assert whole.usage
    assert streamed.usage
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (
        streamed.usage.prompt_tokens,
        streamed.usage.total_tokens,
    )
    assert chunks[-1].choices == []
    assert all(len(each.choices) == 1 for each in chunks[:-1] if not each.model_extra)


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls as the helper assembled them, without the members that it adds."""
    found = []
    for made in message.get("tool_calls") or []:
        kept = {
            key: made[key]
            for key in ("id", "type", "function", "custom")
            if made.get(key) is not None
        }
        kept.get("function", {}).pop("parsed_arguments", None)
        found.append(kept)
    return found


async def test_stream_helper_completes_a_tool_loop() -> None:
    scripts: list[list[Step]] = [
        [
            [
                *reasoning(0, "so"),
                *call(1, "look", '{"at": 3}', call_id="call_1"),
                *call(2, "look", "{}", call_id="call_2"),
                finish(3),
            ]
        ],
        [[*text(0, "All "), *text(1, "seen."), finish(2)]],
    ]
    gateway = FakeGateway(lambda: scripts.pop(0))
    messages = list(HI)
    headers = {"x-turnwire-tool-dispatch": "1", "x-turnwire-reasoning-dispatch": "1"}
    async with serving(gateway) as served, client(served) as sdk:
        async with sdk.chat.completions.stream(
            model=MODEL, messages=messages, tools=FUNCTIONS, extra_headers=headers
        ) as stream:
            kinds = [event.type async for event in stream]
            message = (await stream.get_final_completion()).choices[0].message
        assert kinds.count("tool_calls.function.arguments.done") == 2
        messages.append(message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": each.id, "content": "seen"}
            for each in message.tool_calls or []
        ]
        async with sdk.chat.completions.stream(
            model=MODEL, messages=messages, tools=FUNCTIONS
        ) as stream:
            final = await stream.get_final_completion()
    assert final.choices[0].message.content == "All seen."
    result = gateway.turns[1].conversation.messages
    assert [turn.role for turn in result] == ["user", "assistant", "tool"]
    assert [type(part).__name__ for part in result[1].parts] == ["Reasoning", "Call", "Call"]


async def test_sdk_receives_several_choices() -> None:
    turn: list[TurnEvent] = [*reasoning(0, "so"), *text(1, "Hello"), finish(2)]
    gateway = FakeGateway(lambda: [[event] for event in turn])
    async with serving(gateway) as served, client(served) as sdk:
        whole = await sdk.chat.completions.create(model=MODEL, messages=HI, n=3, seed=7)
        seeds = [each.conversation.sampling.seed for each in gateway.turns]
        async with sdk.chat.completions.stream(model=MODEL, messages=HI, n=3) as stream:
            streamed = await stream.get_final_completion()
    assert seeds == [7, 8, 9]
    for completion in (whole, streamed):
        assert [(each.index, each.message.content) for each in completion.choices] == [
            (at, "Hello") for at in range(3)
        ]
    assert whole.usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (656, 3 * 74)


async def test_sdk_receives_completions() -> None:
    gateway = FakeGateway(lambda: [[*text(0, " upon a time"), finish(1)]])
    # A chunk of Completions has `finish_reason: null` until its end, natively too; the SDK's type
    # knows only the end's.
    async with (
        serving(gateway) as served,
        client(served) as sdk,
        client(served, strict=False) as reader,
    ):
        whole = await sdk.completions.create(model=MODEL, prompt=["Once", "Twice"], n=2, echo=True)
        chunks = [
            each
            async for each in await reader.completions.create(
                model=MODEL, prompt=[1, 2], stream=True, max_tokens=3
            )
        ]
    assert [each.text for each in whole.choices] == ["Once upon a time"] * 2 + [
        "Twice upon a time"
    ] * 2
    assert "".join(each.choices[0].text for each in chunks) == " upon a time"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert gateway.turns[0].conversation.prompt
    assert gateway.turns[4].conversation.sampling.max_tokens == 3


async def test_errors_are_raised_as_the_sdks_classes() -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, client(served) as sdk:
        with pytest.raises(openai.NotFoundError) as unknown:
            await sdk.chat.completions.create(model="nobody", messages=HI)
        assert unknown.value.code == "model_not_found"
        assert unknown.value.param == "model"
        assert str(unknown.value.request_id).startswith("req_")
        with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
            await sdk.chat.completions.create(model=MODEL, messages=HI, temperature=3)
        assert (wrong.value.param, wrong.value.code) == ("temperature", "decimal_above_max_value")
        gateway.refusal = Invalid("too many", param="stop_sequences")
        with pytest.raises(openai.BadRequestError, match="too many") as stops:
            await sdk.chat.completions.create(model=MODEL, messages=HI)
        assert stops.value.param == "stop"
        gateway.refusal = Overloaded("every worker is busy", retry_after_s=2.0)
        with pytest.raises(openai.InternalServerError) as busy:
            await sdk.chat.completions.create(model=MODEL, messages=HI)
        assert busy.value.response.headers["retry-after"] == "2"
        gateway.refusal = EngineFailed("out of memory")
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await sdk.completions.create(model=MODEL, prompt="a", stream=True)


@pytest.mark.parametrize(
    ("requested", "total", "completion"),
    [(4096, 134_096, 4096), (None, 131_024, 1024), (1500, 131_500, 1500)],
)
async def test_context_overflow_has_the_wording_that_agents_parse(
    requested: int | None, total: int, completion: int
) -> None:
    with pytest.raises(ContextOverflow) as caught:
        limit_output(130_000 + 300, requested, 131_072)
    gateway = FakeGateway()
    gateway.refusal = caught.value
    async with serving(gateway) as served, client(served) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HI)
    assert refused.value.code == "context_length_exceeded"
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["message"] == (
        f"This model's maximum context length is 131072 tokens. However, you requested {total + 300} tokens "
        f"(130300 in the messages, {completion} in the completion). Please reduce the length of the messages or completion."
    )


async def test_error_in_mid_stream_is_raised() -> None:
    steps: list[Step] = [
        [*text(0, "half")],
        [Failed(ErrorInfo(ErrorKind.ENGINE, "the engine failed"))],
    ]
    said: list[str] = []

    async def read() -> None:
        async for each in await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True):
            said.append(each.choices[0].delta.content or "")

    async with serving(FakeGateway(lambda: steps)) as served, client(served) as sdk:
        with pytest.raises(openai.APIError, match="the engine failed"):
            await read()
    assert "".join(said) == "half"
