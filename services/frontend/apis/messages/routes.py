"""The operations of the Messages API."""

from functools import partial

from services.frontend.apis.messages import wire
from services.frontend.apis.messages.errors import ANTHROPIC
from services.frontend.apis.messages.request import (
    Messages,
    MessagesRequest,
    apply_context_edits,
    compact,
)
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.http.middleware import RequestContext

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
_EXAMPLE = {
    "model": "your-model",
    "max_tokens": 1024,
    "system": "You are a helpful agent.",
    "messages": [
        _QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": ""},
                {
                    "type": "tool_use",
                    "id": "toolu_01",
                    "name": "get_weather",
                    "input": {"city": "Paris"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "18 degrees, sunny"}
            ],
        },
    ],
    "tools": [{"name": "get_weather", "description": "Current weather.", "input_schema": _SCHEMA}],
    "thinking": {"type": "adaptive"},
}
_EVENTS = "^(message_(start|delta|stop)|content_block_(start|delta|stop)|ping|error|tool_call_dispatch|reasoning_dispatch)$"


def _mount(mount: Mount) -> None:
    messages, runner = Messages(mount.config.served_tools), mount.runner

    async def prepare(ask: MessagesRequest, context: RequestContext) -> MessagesRequest:
        return await apply_context_edits(ask, partial(runner.count, context=context))

    async def prepare_turn(ask: MessagesRequest, context: RequestContext) -> MessagesRequest:
        ask = await prepare(ask, context)
        if ask.compact is None:
            return ask
        window = runner.model(ask.conversation, context).max_model_len
        write = partial(runner.read, context=context, dialect=messages.name)
        return await compact(ask, partial(runner.count, context=context), window, write)

    mount.add_turns(PATH, messages, prepare_turn)
    mount.add_count(COUNT_PATH, messages.parse_count, messages.count_body, prepare)


API = Api(
    name="Messages",
    title="Anthropic Messages",
    errors=ANTHROPIC,
    paths=("/v1/messages",),
    operations=(
        Operation(
            PATH,
            "Create a message",
            body=wire.Body,
            required=("model", "max_tokens"),
            example=_EXAMPLE,
            answer=wire.Answer,
            events=_EVENTS,
        ),
        Operation(
            COUNT_PATH,
            "Count the tokens of a message's prompt",
            body=wire.Body,
            required=("model",),
            example={"model": "your-model", "messages": [_QUESTION]},
            answer=wire.Tokens,
        ),
    ),
    mount=_mount,
    enabled=lambda config: config.enable_anthropic_api,
)
