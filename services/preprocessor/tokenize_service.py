"""Answers count, tokenize and detokenize requests."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from schemas import subjects
from schemas.errors import EngineFailed, TurnwireError
from schemas.frames import (
    CountRequest,
    DetokenizeRequest,
    TextReply,
    TokenizeRequest,
    pack_ids,
    unpack_ids,
)
from services.preprocessor.preparation import Preparation
from services.runtime.bus import Delivery, Subscription
from services.runtime.process import Process

Spawn = Callable[[Coroutine[Any, Any, None], str], object]
"""Starts a named task that a drain waits for."""
Answer = Callable[[Delivery], Coroutine[Any, Any, TextReply]]

_encode = msgspec.json.Encoder().encode
_decode_count = msgspec.json.Decoder(CountRequest).decode
_decode_tokenize = msgspec.json.Decoder(TokenizeRequest).decode
_decode_detokenize = msgspec.json.Decoder(DetokenizeRequest).decode


class TokenizeService:
    """Answers these requests for one model."""

    def __init__(self, process: Process, preparation: Preparation, spawn: Spawn) -> None:
        self._process = process
        self._preparation = preparation
        self._spawn = spawn

    async def start(self) -> list[Subscription]:
        """Subscribes to the requests; returns the subscriptions."""
        model, own = self._preparation.setup.card.name, self._process.id
        answers: list[tuple[str, Answer]] = [
            (subjects.count(model, own), self._count),
            (subjects.tokenize(model, own), self._tokenize),
            (subjects.detokenize(model, own), self._detokenize),
        ]
        return [
            await self._process.subscribe(subject, partial(self._answer, answer))
            for subject, answer in answers
        ]

    def _answer(self, answer: Answer, delivery: Delivery) -> None:
        async def reply() -> None:
            try:
                found = await answer(delivery)
            except TurnwireError as error:
                found = TextReply(error=error.info)
            except msgspec.DecodeError as error:  # not sent by a frontend of this release
                found = TextReply(error=EngineFailed(f"the request cannot be read: {error}").info)
            except Exception as error:  # the client waits for a reply in any case
                self._process.log.exception(
                    "preprocessor.question_failed", subject=delivery.subject
                )
                found = TextReply(
                    error=EngineFailed(f"could not be answered: {type(error).__name__}").info
                )
            delivery.reply(_encode(found))

        self._spawn(reply(), delivery.subject)

    async def _count(self, delivery: Delivery) -> TextReply:
        request = _decode_count(delivery.data)
        prompt = await self._preparation.prompt(
            request.conversation, limit=False, size=len(delivery.data)
        )
        return TextReply(
            count=len(prompt.ids), max_model_len=self._preparation.setup.card.max_model_len
        )

    async def _tokenize(self, delivery: Delivery) -> TextReply:
        request = _decode_tokenize(delivery.data)
        preparation = self._preparation
        if request.conversation is not None:
            size = len(delivery.data)
            ids = (await preparation.prompt(request.conversation, limit=False, size=size)).ids
        else:
            encode = preparation.setup.tokenizer.encode
            ids = await preparation.run(
                partial(encode, request.text or "", request.add_special_tokens)
            )
        return TextReply(
            count=len(ids),
            token_ids=pack_ids(ids),
            max_model_len=preparation.setup.card.max_model_len,
        )

    async def _detokenize(self, delivery: Delivery) -> TextReply:
        request = _decode_detokenize(delivery.data)
        ids = unpack_ids(request.token_ids)
        decode = self._preparation.setup.tokenizer.decode
        return TextReply(count=len(ids), text=await self._preparation.run(partial(decode, ids)))
