"""Converts text to tokens and back by the model's own tokenizer, with vLLM's paths and field names.

POST /v1/tokenize     {"model", "prompt"}, or a request with `messages` of Chat Completions or of
                      the Messages API → {"count", "max_model_len", "tokens"}
POST /v1/detokenize   {"model", "tokens"} → {"prompt"}
"""

from itertools import chain
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from schemas.conversation import Conversation
from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.frontend.apis.chat import wire as chat
from services.frontend.apis.chat.render import Settings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages import wire as messages
from services.frontend.apis.messages.errors import explain
from services.frontend.apis.messages.preparation import apply_context_edits
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.decode import NULL, decode_body, is_set, objects, tags_of
from services.frontend.apis.shared.shared_errors import SHARED
from services.frontend.http.bodies import is_large, read_body, run_in_thread_if
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.frontend.turns.turn_service import RequestModel


class Text(Struct):
    """Text to tokenize, or a request of Chat Completions or of the Messages API."""

    model: str = ""
    prompt: str | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True


class Ids(Struct):
    """Token ids."""

    tokens: list[Annotated[int, Meta(ge=0, le=2**32 - 1)]]
    model: str = ""


class TokenIds(Struct):
    """Ids of a text or of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: None


class PlainPrompt(Struct):
    """The text of ids."""

    prompt: str


_text = msgspec.json.Decoder(msgspec.defstruct("Text", [("messages", Raw, NULL)], bases=(Text,)))
"""Decodes the body; conversations stay raw and are parsed by their dialect."""
_ids = msgspec.json.Decoder(Ids)


class TokenRoutes:
    """The handlers."""

    def __init__(self, setup: ApiSetup) -> None:
        self._max_bytes = setup.config.max_body_bytes
        self._turns = setup.turns
        self._admission = setup.turns.admission
        served = setup.config.served_tools
        self._messages = Messages(served)
        self._chat = Chat(Settings(served=frozenset(served)))

    async def tokenize(self, http: web.Request) -> web.Response:
        """`POST /v1/tokenize`: the ids of a text, or of a conversation's prompt."""
        body = await read_body(http, self._max_bytes)
        large = is_large(body)
        fields: Any = await run_in_thread_if(
            large, lambda: decode_body(_text.decode, body, explain)
        )
        text = fields.text if fields.prompt is None else fields.prompt
        if text is None and not is_set(fields.messages):
            raise Invalid("prompt: Field required (or `text`, or `messages`)", param="prompt")

        caller = http[REQUEST_CONTEXT].caller
        special = fields.add_special_tokens
        if text is None:
            conversation = await self._read_conversation(http, body, large)
            reply = await self._admission.tokenize(conversation, caller, special)
        else:
            reply = await self._admission.tokenize_text(fields.model, text, caller, special)

        ids = unpack_ids(reply.token_ids)
        answer = {
            "count": len(ids),
            "max_model_len": reply.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        return json_response(msgspec.json.encode(answer))

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /v1/detokenize`: the text of ids."""
        body = await read_body(http, self._max_bytes)
        fields = await run_in_thread_if(
            is_large(body), lambda: decode_body(_ids.decode, body, explain)
        )

        caller = http[REQUEST_CONTEXT].caller
        reply = await self._admission.detokenize(fields.model, fields.tokens, caller)
        return json_response(msgspec.json.encode(PlainPrompt(reply.text or "")))

    async def _read_conversation(self, http: web.Request, body: bytes, large: bool) -> Conversation:
        """The conversation of a body as its turn would have it, with its context edits applied."""
        if await run_in_thread_if(large, lambda: _is_chat_body(body)):
            chat_request = await run_in_thread_if(
                large, lambda: self._chat.parse_prompt(body, http.headers)
            )
            return chat_request.conversation

        messages_request = await run_in_thread_if(
            large, lambda: self._messages.parse_count(body, http.headers)
        )
        model = RequestModel(self._turns, http[REQUEST_CONTEXT])
        edited = await apply_context_edits(messages_request, model)
        return edited.conversation


_MESSAGES_FIELDS = {*messages.Body.__struct_fields__, "service_tier"}
_CHAT_FIELDS = {*chat.Body.__struct_fields__, "add_generation_prompt"} - _MESSAGES_FIELDS
_CHAT_MEMBERS = {*chat.Message.__struct_fields__} - {*messages.Message.__struct_fields__}
_CHAT_ROLES = ("developer", "tool", "function")
_CHAT_PARTS = {*tags_of(chat.Part)} - {*tags_of(messages.Block)}
_CHAT_CHOICES = ("function", "custom", "allowed_tools")


def _is_chat_body(body: bytes) -> bool:
    """Whether a body with `messages` has something that only Chat Completions has. Members that
    Messages has, too, mean the same in both."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(request, dict):
        return False
    return (
        not _CHAT_FIELDS.isdisjoint(request)
        or isinstance(request.get("thinking"), bool)
        or _is_chat_choice(request.get("tool_choice"))
        or any(_is_chat_tool(tool) for tool in objects(request.get("tools")))
        or any(_is_chat_message(message) for message in objects(request.get("messages")))
    )


def _is_chat_choice(choice: object) -> bool:
    if isinstance(choice, dict):
        return choice.get("type") in _CHAT_CHOICES
    return isinstance(choice, str)


def _is_chat_tool(tool: dict[str, Any]) -> bool:
    return bool(tool.get("function") or tool.get("custom"))


def _is_chat_message(message: dict[str, Any]) -> bool:
    if message.get("role") in _CHAT_ROLES:
        return True
    if any(message.get(name) is not None for name in _CHAT_MEMBERS):
        return True
    return any(part.get("type") in _CHAT_PARTS for part in objects(message.get("content")))


_PREFIXES = ("/v1", "")
"""vLLM serves these paths without /v1."""


def _add_routes(setup: ApiSetup) -> None:
    routes = TokenRoutes(setup)
    for prefix in _PREFIXES:
        setup.app.router.add_post(f"{prefix}/tokenize", routes.tokenize)
        setup.app.router.add_post(f"{prefix}/detokenize", routes.detokenize)


def _operations(prefix: str) -> tuple[Operation, Operation]:
    return (
        Operation(
            f"{prefix}/tokenize",
            "Ids of a text or of a request's prompt",
            body=Text,
            example={"model": "your-model", "prompt": "What is the weather in Paris?"},
            answer=TokenIds,
        ),
        Operation(
            f"{prefix}/detokenize",
            "The text of ids",
            body=Ids,
            example={"model": "your-model", "tokens": [9707, 11, 1879]},
            answer=PlainPrompt,
        ),
    )


API = Api(
    name="Tokens",
    title="Tokens",
    errors=SHARED,
    operations=tuple(chain(*map(_operations, _PREFIXES))),
    add_routes=_add_routes,
)
