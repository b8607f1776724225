"""The types of the answers of Chat Completions, and its operations."""

from functools import partial
from typing import Any, Literal

from msgspec import Struct

from services.frontend.apis.chat import wire
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.chat.stream import Settings
from services.frontend.apis.shared.mount import Api, Mount, Operation, Query
from services.frontend.apis.shared.openai.chunks import EVENTS, FINGERPRINT, UsageAnswer
from services.frontend.apis.shared.shared_errors import OPENAI
from services.frontend.apis.stored_chat.server import Change, StoredChats

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


class StoredAnswer(Answer, kw_only=True):
    """A stored chat completion."""

    metadata: dict[str, str]


class StoredAnswers(Struct):
    """A page of stored chat completions."""

    object: Literal["list"]
    data: list[StoredAnswer]
    first_id: str
    last_id: str
    has_more: bool


class Deleted(Struct):
    """A chat completion that is no longer stored."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


class Messages(Struct):
    """A page of the messages of a request."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


_of_completion = partial(Operation, id="The id of a chat completion.")
_PAGE = (
    Query("limit", {"type": "integer", "minimum": 0, "maximum": 100}, "Most entries to return; default: 20."),
    Query("after", {"type": "string"}, "Return the entries that follow this one."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: oldest."),
)
_LIST = (*_PAGE, Query("model", {"type": "string"}, "Only completions of this model."))
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
    StoredChats(mount, chat).add_to(mount.app.router, PATH)


API = Api(
    name="Chat",
    title="OpenAI Chat Completions",
    errors=OPENAI,
    paths=("/v1/chat", "/v1/embeddings"),
    operations=(
        Operation(PATH, "Create a chat completion", body=wire.Body, example=_EXAMPLE, answer=Answer, events=EVENTS),
        Operation(PATH, "List stored chat completions", method="get", answer=StoredAnswers, query=_LIST),
        _of_completion(
            "/v1/chat/completions/{id}", "Retrieve a stored chat completion", method="get", answer=StoredAnswer
        ),
        _of_completion(
            "/v1/chat/completions/{id}",
            "Change the metadata of a stored chat completion",
            body=Change,
            example={"metadata": {"topic": "weather"}},
            answer=StoredAnswer,
        ),
        _of_completion("/v1/chat/completions/{id}", "Delete a stored chat completion", method="delete", answer=Deleted),
        _of_completion(
            "/v1/chat/completions/{id}/messages",
            "List the messages of a stored chat completion's request",
            method="get",
            answer=Messages,
            query=_PAGE,
        ),
    ),
    mount=_mount,
)
