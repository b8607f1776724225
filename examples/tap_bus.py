"""Prints each completed call and each finished turn of a running server: python examples/tap_bus.py
NATS_URL [TURNS]

`turnwire tap` prints the address of the bus. Event frames are JSON, as are all messages but one: a
request to a worker has the prompt's token ids after a zero byte (`requests.decode_generate` reads
it). See schemas/ and docs/bus.md.
"""

import asyncio
import sys

import msgspec
import nats

from schemas import subjects
from schemas.events import Dispatch, Finish
from schemas.frames import EventFrame


async def main(url: str, turns: int) -> None:
    """Reads event frames until `turns` turns have finished."""
    bus = await nats.connect(url)
    subscription = await bus.subscribe(subjects.events("*").replace(subjects.escape("*"), "*"))
    print("reading", flush=True)
    async for message in subscription.messages:
        for entry in msgspec.json.decode(message.data, type=EventFrame).entries:
            for event in entry.events:
                if isinstance(event, Dispatch):
                    print(f"{entry.turn} calls {event.name} {event.arguments}", flush=True)
                elif isinstance(event, Finish):
                    print(
                        f"{entry.turn} ends: {event.reason}, {event.usage.output} tokens",
                        flush=True,
                    )
                    turns -= 1
                    if turns == 0:
                        await bus.close()
                        return


asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1))
