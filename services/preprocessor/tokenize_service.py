"""Answers count, tokenize and detokenize requests."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from schemas import subjects
from schemas.errors import EngineFailed, TurnwireError, as_turnwire_error
from schemas.requests import CountRequest, DetokenizeRequest, TextReply, TokenizeRequest
from schemas.token_ids import pack_ids, unpack_ids
from services.preprocessor.open_work import OpenWork
from services.preprocessor.preparation import Preparation
from services.runtime.nats.bus import Delivery
from services.runtime.nats.connection import Subscription
from services.runtime.process import Process

Answer: TypeAlias = Callable[[bytes], Awaitable[TextReply]]
"""Answers a request of one kind, still encoded."""

_encode = msgspec.json.Encoder().encode
_decode_count = msgspec.json.Decoder(CountRequest).decode
_decode_tokenize = msgspec.json.Decoder(TokenizeRequest).decode
_decode_detokenize = msgspec.json.Decoder(DetokenizeRequest).decode


class TokenizeService:
    """Answers these requests for one model."""

    def __init__(self, process: Process, preparation: Preparation, open_work: OpenWork) -> None:
        self._process = process
        self._preparation = preparation
        self._open = open_work
        model = preparation.setup.card.name
        self._answers: dict[str, Answer] = {
            subjects.count(model, process.id): self._count,
            subjects.tokenize(model, process.id): self._tokenize,
            subjects.detokenize(model, process.id): self._detokenize,
        }
        """The function that answers the requests on each subject."""

    async def start(self) -> list[Subscription]:
        """Subscribes to the requests; returns the subscriptions."""
        return [
            await self._process.subscribe(subject, self._on_request) for subject in self._answers
        ]

    def _on_request(self, delivery: Delivery) -> None:
        self._open.start(self._reply(delivery), delivery.subject)

    async def _reply(self, delivery: Delivery) -> None:
        answer = self._answers[delivery.subject]
        try:
            reply = await answer(delivery.data)
        except msgspec.DecodeError as error:  # not sent by a frontend of this release
            reply = TextReply(error=EngineFailed(f"the request cannot be read: {error}").info)
        except Exception as error:  # the client waits for a reply in any case
            if not isinstance(error, TurnwireError):
                log = self._process.log
                log.exception("preprocessor.question_failed", subject=delivery.subject)
            reply = TextReply(error=as_turnwire_error(error, "could not be answered").info)
        delivery.reply(_encode(reply))

    async def _count(self, data: bytes) -> TextReply:
        request = _decode_count(data)
        prompt = await self._preparation.make_prompt(request.conversation, size=len(data))
        return TextReply(count=len(prompt.ids), max_model_len=self._max_model_len)

    async def _tokenize(self, data: bytes) -> TextReply:
        request = _decode_tokenize(data)
        preparation = self._preparation
        ids: Sequence[int]
        if request.conversation is not None:
            prompt = await preparation.make_prompt(request.conversation, size=len(data))
            ids = prompt.ids
        else:
            encode = preparation.setup.tokenizer.encode
            ids = await preparation.threads.run(
                encode, request.text or "", request.add_special_tokens
            )
        return TextReply(count=len(ids), token_ids=pack_ids(ids), max_model_len=self._max_model_len)

    async def _detokenize(self, data: bytes) -> TextReply:
        ids = unpack_ids(_decode_detokenize(data).token_ids)
        decode = self._preparation.setup.tokenizer.decode
        text = await self._preparation.threads.run(decode, ids)
        return TextReply(count=len(ids), text=text)

    @property
    def _max_model_len(self) -> int:
        return self._preparation.setup.card.max_model_len
