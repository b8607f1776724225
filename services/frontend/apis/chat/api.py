"""The types of the answers of Chat Completions, and its operations."""

from typing import Any, Literal

from msgspec import Struct

from services.frontend.apis.chat import wire
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.chat.stream import Settings
from services.frontend.apis.shared.mount import Api, Mount, Operation
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT, UsageAnswer
from services.frontend.apis.shared.shared_errors import OPENAI

PATH = "/v1/chat/completions"


class AnswerMessage(Struct):
    """The assistant's message. Reasoning is in the field that the server is configured for."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None


class AnswerChoice(Struct):
    """One of the answers."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    logprobs: dict[str, Any] | None
    token_ids: list[int] | None = None


class Answer(Struct):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageAnswer
    system_fingerprint: str
    service_tier: str | None = None
    prompt_token_ids: list[int] | None = None


_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_EXAMPLE = {
    "model": "your-model",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}],
}


def _mount(mount: Mount) -> None:
    config = mount.config
    served = frozenset(config.served_tools)
    chat = Chat(Settings(config.reasoning_field, config.reasoning_details, FINGERPRINT, served))
    mount.add_turns(PATH, chat)


API = Api(
    name="Chat",
    title="OpenAI Chat Completions",
    errors=OPENAI,
    paths=("/v1/chat", "/v1/embeddings"),
    operations=(
        Operation(PATH, "Create a chat completion", body=wire.Body, example=_EXAMPLE, answer=Answer, events=EVENTS),
    ),
    mount=_mount,
)
