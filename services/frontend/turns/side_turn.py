"""Runs a turn whose events this server reads itself, before it answers the request."""

import asyncio
import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.errors import TurnwireError, raised
from schemas.events import TurnEvent
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.interfaces import OpenTurn
from services.frontend.turns.metrics import TurnRecord
from services.frontend.turns.sinks import DocumentSink
from services.frontend.turns.turn_server import TurnServer


async def run_side_turn(
    server: TurnServer, conversation: Conversation, context: RequestContext, dialect: str
) -> Sequence[TurnEvent]:
    """The events of a whole turn, whose tokens are charged to the caller. Cancelling this cancels the turn.

    Raises TurnwireError where the turn cannot start or fails.
    """
    loop = asyncio.get_running_loop()
    record = TurnRecord(server.metrics, loop.time(), loop.time)
    sink = DocumentSink(record)
    turn: OpenTurn | None = None
    try:
        card = server.card(conversation.model)
        client = replace(conversation.client, tenant=context.tenant)
        record.opened(card.name)
        turn = await server.gateway.open(
            replace(conversation, model=card.name, client=client), sink, turn_id=secrets.token_hex(12)
        )
        record.prompt_tokens = turn.prepared.prompt_tokens
        await sink.done.wait()
    except TurnwireError as error:
        record.outcome = str(error.info.kind)
        raise
    except asyncio.CancelledError:
        record.outcome = "hangup"
        raise
    finally:
        if turn is not None and not sink.ended:
            turn.cancel("hangup")
        record.outcome = record.outcome or "internal"
        record.close(dialect)
        if context.caller is not None:
            context.caller.spend(record.tokens)
        fields = record.fields()
        server.log.info("summary", request=context.request_id, outcome=record.outcome, tenant=context.tenant, **fields)
    if sink.failure is not None:
        raise raised(sink.failure)
    (events,) = sink.events
    return events
