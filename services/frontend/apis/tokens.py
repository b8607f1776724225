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
from schemas.token_ids import unpack_ids
from services.frontend.apis.chat import wire as chat
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat, ChatRequest
from services.frontend.apis.messages import wire as messages
from services.frontend.apis.messages.context_management import apply_context_edits
from services.frontend.apis.messages.errors import explain
from services.frontend.apis.messages.request import Messages, MessagesRequest
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, json_response
from services.frontend.apis.shared.client import Headers
from services.frontend.apis.shared.decode import decode_body, objects, tags_of
from services.frontend.apis.shared.errors import SHARED
from services.frontend.apis.shared.field_types import NULL, is_set
from services.frontend.apis.shared.http_answer import read_request
from services.frontend.apis.shared.surrogates import decode_mended
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.turns.turn_service import ModelAccess


class TokensText(Struct):
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


_text = msgspec.json.Decoder(
    msgspec.defstruct("TokensText", [("messages", Raw, NULL)], bases=(TokensText,))
)
"""Decodes the body; conversations stay raw and are parsed by their dialect."""
_ids = msgspec.json.Decoder(Ids)


class TokenRoutes:
    """The handlers."""

    def __init__(self, setup: ApiSetup) -> None:
        self._max_bytes = setup.config.max_body_bytes
        self._turns = setup.turns
        served = setup.config.served_tools
        self._messages = Messages(served)
        self._chat = Chat(ChatSettings(served=frozenset(served)))

    async def tokenize(self, http: web.Request) -> web.Response:
        """`POST /v1/tokenize`: the ids of a text, or of a conversation's prompt."""
        fields, request = await read_request(http, self._max_bytes, self._parse)

        caller = http[REQUEST_CONTEXT].caller
        special = fields.add_special_tokens
        if request is None:
            text = _text_of(fields) or ""
            reply = await self._turns.tokenize_text(fields.model, text, caller, special)
        else:
            conversation = await self._edited(request, http)
            reply = await self._turns.tokenize(conversation, caller, special)

        ids = unpack_ids(reply.token_ids)
        answer = {
            "count": len(ids),
            "max_model_len": reply.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        return json_response(answer)

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /v1/detokenize`: the text of ids."""
        fields = await read_request(http, self._max_bytes, _parse_ids)

        caller = http[REQUEST_CONTEXT].caller
        reply = await self._turns.detokenize(fields.model, fields.tokens, caller)
        return json_response(PlainPrompt(reply.text or ""))

    def _parse(
        self, body: bytes, headers: Headers
    ) -> tuple[TokensText, ChatRequest | MessagesRequest | None]:
        """Parses a request to tokenize: its own fields, and its conversation if it has no text.
        Raises Invalid."""
        fields: Any = decode_body(_text.decode, body, explain)
        if _text_of(fields) is not None:
            return fields, None
        if not is_set(fields.messages):
            raise Invalid("prompt: Field required (or `text`, or `messages`)", param="prompt")
        if _is_chat_body(body):
            return fields, self._chat.parse_prompt(body, headers)
        return fields, self._messages.parse_count(body, headers)

    async def _edited(
        self, request: ChatRequest | MessagesRequest, http: web.Request
    ) -> Conversation:
        """The conversation as its turn would have it, with its context edits applied."""
        if isinstance(request, MessagesRequest):
            model = ModelAccess(self._turns, http[REQUEST_CONTEXT])
            request = await apply_context_edits(request, model)
        return request.conversation


def _text_of(fields: TokensText) -> str | None:
    return fields.text if fields.prompt is None else fields.prompt


def _parse_ids(body: bytes, _headers: Headers) -> Ids:
    return decode_body(_ids.decode, body, explain)


_MESSAGES_FIELDS = {*messages.MessagesBody.__struct_fields__, "service_tier"}
_CHAT_FIELDS = {*chat.ChatBody.__struct_fields__, "add_generation_prompt"} - _MESSAGES_FIELDS
_CHAT_MEMBERS = {*chat.ChatMessage.__struct_fields__} - {
    *messages.MessagesMessage.__struct_fields__
}
_CHAT_ROLES = ("developer", "tool", "function")
_CHAT_PARTS = {*tags_of(chat.Part)} - {*tags_of(messages.Block)}
_CHAT_CHOICES = ("function", "custom", "allowed_tools")


def _is_chat_body(body: bytes) -> bool:
    """Whether a body with `messages` has something that only Chat Completions has. Members that
    Messages has, too, mean the same in both."""
    try:
        request = decode_mended(msgspec.json.decode, body)
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
            body=TokensText,
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
