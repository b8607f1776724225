"""Makes the token sequence of a turn: the prompt that its worker received and what was decoded behind it. Pure."""

from array import array
from itertools import chain

from msgspec import Struct, field

from schemas.conversation import Call, Conversation, Text
from schemas.events import Finish, FinishReason
from schemas.frames import ParseContext, unpack_array
from services.cli.bus.turns import FollowedTurn
from services.cli.replay.script import RecordedTokens


class DecodedTurn(Struct):
    """One turn, as its worker decoded it."""

    turn: str
    time: float
    """Unix time of the request."""
    conversation: Conversation
    prompt: "array[int]" = field(default_factory=lambda: array("I"))
    context: ParseContext | None = None
    output: "array[int]" = field(default_factory=lambda: array("I"))
    """What `Usage.output` counts: with the end token, if the engine reported one, and without tokens behind a cut."""
    logprobs: list[float | None] = []
    """One for each output token; empty where the client did not ask for them."""
    stop_id: int | None = None
    """The end token, which is then the last of `output`."""
    reason: FinishReason = FinishReason.STOP
    written: list[Text | Call] = []
    """Its text and calls, as the client received them."""


def decoded_turn(turn: FollowedTurn) -> DecodedTurn | None:
    """The sequence of a whole turn. None if it failed, decoded nothing, or was decoded behind more than one prompt."""
    last, prompt = turn.last, turn.prompt
    if not isinstance(last, Finish) or last.reason in (FinishReason.CANCELLED, FinishReason.ERROR):
        return None
    if not last.usage.output or prompt is None or not prompt.ids or not turn.one_prompt:
        return None
    count, stop_id, logprobs = last.usage.output, None, turn.logprobs
    output = array("I", chain.from_iterable(step.tokens for step in turn.steps if isinstance(step, RecordedTokens)))
    if turn.stop is not None and turn.stop.stop_id is not None and len(output) == count - 1:
        stop_id = turn.stop.stop_id
        output.append(stop_id)
        if turn.stop.logprobs and turn.stop.logprobs[0][1] is not None:
            logprobs = {**logprobs, count - 1: turn.stop.logprobs[0][1]}
    return DecodedTurn(
        turn.id,
        turn.time,
        turn.conversation,
        unpack_array(prompt.ids),
        turn.context,
        output[:count],
        [logprobs.get(at) for at in range(count)] if logprobs else [],
        stop_id,
        last.reason,
        list(turn.written()),
    )
