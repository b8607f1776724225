"""Tokens of text and text of tokens, as the model's own tokenizer has them.

    POST /v1/messages/count_tokens   a Messages request without max_tokens → {"input_tokens"}
    POST /v1/tokenize                {"model", "prompt"}, or a request with `messages` of Chat Completions or of the
                                     Messages API → {"count", "max_model_len", "tokens"}
    POST /v1/detokenize              {"model", "tokens"} → {"prompt"}

The last two have vLLM's field names, and are also there without /v1 as in vLLM.
"""

import msgspec
from aiohttp import web
from msgspec import Struct

from schemas.conversation import Conversation
from schemas.errors import Invalid, NotFound, raised
from schemas.frames import TextReply, unpack_ids
from services.frontend.dialects.chat.dialect import Chat
from services.frontend.dialects.chat.sniff import looks_like_chat
from services.frontend.dialects.decode import decode_body
from services.frontend.dialects.messages.dialect import Messages
from services.frontend.dialects.messages.wording import explain
from services.frontend.exchange import EXCHANGE
from services.frontend.limits import read_body, understand
from services.frontend.turns import TurnGateway

_MAX_ID = 2**32 - 1


class _Tokenize(Struct):
    model: str = ""
    prompt: str | None = None
    text: str | None = None
    messages: msgspec.Raw = msgspec.Raw(b"null")
    add_special_tokens: bool = True


class _Detokenize(Struct):
    tokens: list[int]
    model: str = ""


_tokenize = msgspec.json.Decoder(_Tokenize)
_detokenize = msgspec.json.Decoder(_Detokenize)


class TextRoutes:
    """Counts, ids and text."""

    def __init__(self, dialect: Messages, chat: Chat, gateway: TurnGateway, max_body_bytes: int) -> None:
        self._dialect = dialect
        self._chat = chat
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def count(self, request: web.Request) -> web.Response:
        """Exact prompt tokens of a Messages request."""
        body = await read_body(request, self._max_body_bytes)
        ask = await understand(self._dialect.parse_count, body, request.headers)
        tokens = await self._gateway.count(self._admit(ask.conversation))
        request[EXCHANGE].fields |= {"model": ask.conversation.model, "prompt_tokens": tokens}
        return web.Response(body=self._dialect.count_body(ask, tokens), content_type="application/json")

    async def tokenize(self, request: web.Request) -> web.Response:
        """Ids of a text, or of the prompt that a conversation makes."""
        body = await read_body(request, self._max_body_bytes)
        asked = decode_body(_tokenize.decode, body, explain)
        text = asked.prompt if asked.prompt is not None else asked.text
        conversation = None
        if text is None:
            if bytes(asked.messages) == b"null":
                raise Invalid("prompt: Field required (or `text`, or `messages`)", param="prompt")
            parse = self._chat.parse_prompt if looks_like_chat(body) else self._dialect.parse_count
            conversation = self._admit(parse(body, request.headers).conversation)
        model = self._model(asked.model)
        reply = _checked(await self._gateway.tokenize(model, text, conversation, asked.add_special_tokens))
        ids = unpack_ids(reply.token_ids)
        return _json({"count": len(ids), "max_model_len": reply.max_model_len, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of ids."""
        asked = decode_body(_detokenize.decode, await read_body(request, self._max_body_bytes), explain)
        if any(not 0 <= token <= _MAX_ID for token in asked.tokens):
            raise Invalid("tokens: every token id must be from 0 to 4294967295", param="tokens")
        reply = _checked(await self._gateway.detokenize(self._model(asked.model), asked.tokens))
        return _json({"prompt": reply.text or ""})

    def _admit(self, conversation: Conversation) -> Conversation:
        return msgspec.structs.replace(conversation, model=self._model(conversation.model))

    def _model(self, name: str) -> str:
        try:
            return self._gateway.resolve(name).name
        except NotFound:
            if name:
                raise
            raise Invalid("model: Field required", param="model") from None


def _checked(reply: TextReply) -> TextReply:
    if reply.error is not None:
        raise raised(reply.error)
    return reply


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
