"""A prepared turn as the request to its worker. Pure."""

from typing import Literal

import msgspec

from schemas.conversation import Conversation
from schemas.frames import GenerateRequest, ParseContext, TurnRequest
from schemas.ledger import LedgerSeat
from services.parser.verbatim import VERBATIM
from services.preprocessor.answer_form import held_form
from services.preprocessor.prompt import Prompt, allowed_tools
from services.preprocessor.routing import priority

_encode = msgspec.json.Encoder().encode


def generate_request(
    request: TurnRequest, prompt: Prompt, packed: bytes, *, model: str, family: str, parser: str, salt: str | None
) -> GenerateRequest:
    """What the worker gets. `packed`: the prompt's ids (`pack_ids`), made once for all workers that are asked."""
    conversation = request.conversation
    choice, sampling = conversation.tool_choice, conversation.sampling
    # Where a form fixes the whole output, a call's markup in it is content.
    form = held_form(conversation)
    none = choice.mode == "none" or form is not None
    calls: Literal["parallel", "single", "none"] = "none" if none else "parallel" if choice.parallel else "single"
    context = ParseContext(
        model=model,
        family=family if conversation.prompt is None else VERBATIM.name,
        frontend=request.frontend,
        prompt_tokens=len(prompt.ids),
        max_tokens=prompt.max_tokens,
        in_reasoning=prompt.in_reasoning,
        prefix=prompt.prefix,
        stop=[stop for stop in sampling.stop if stop],
        include_stop=sampling.include_stop,
        calls=calls,
        allowed=allowed_tools(conversation),
        logprobs=sampling.logprobs,
        window_limited=prompt.window_limited,
        ledger=seat_of(prompt, conversation),
    )
    return GenerateRequest(
        turn=request.turn,
        attempt=request.attempt,
        model=model,
        prompt=packed,
        parser=parser,
        frontend=request.frontend,
        sampling=prompt.sampling,
        stop_ids=prompt.stop_ids,
        context=msgspec.Raw(_with_tools(_encode(context), prompt.parsed_tools)),
        resume=request.resume,
        deadline=request.deadline,
        cache_salt=salt,
        priority=priority(conversation),
        guided=msgspec.Raw(_encode(form)),
        traceparent=request.traceparent,
    )


def _with_tools(context: bytes, tools: bytes) -> bytes:
    """A parse context that has no tools yet, with these: they are the same for a whole session, and most of it."""
    return context if tools == b"[]" else b'%b,"tools":%b}' % (context[:-1], tools)


def seat_of(prompt: Prompt, conversation: Conversation) -> LedgerSeat | None:
    """Where the turn will stand in the ledger. A turn that may end where its template does not close it has none."""
    sampling = conversation.sampling
    if prompt.found is None or sampling.stop_token_ids or sampling.ignore_eos:
        return None
    return prompt.found.seat
