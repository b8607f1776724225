"""The comparison of contents, against servers that keep their word and one that does not."""

import asyncio
import re

from bench.apis import APIS
from bench.client import Target
from bench.measuring import Site
from bench.sameness import SCRIPTS, Check, compare
from bench.stub import Answer, closing, delta, opening, port_of, send, serve


def says(*, spoiled: int) -> Answer:
    """Merges deltas of requests without a delay; the request with that number gets other text."""

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        found = re.search(rb"delay=(\d+) id=(\d+)", body)
        assert found is not None
        words = ["one ", "two ", "three" if int(found[2]) != spoiled else "four"]
        texts = words if int(found[1]) else ["".join(words)]
        await send(writer, [opening(), *(delta(text) for text in texts), closing(3)])

    return answer


async def compared(answer: Answer) -> Check:
    server = await serve(answer)
    site = Site(target=Target("127.0.0.1", port_of(server)), api=APIS["messages"], model="m")
    try:
        return await compare(site, streams=8, tokens=3)
    finally:
        server.close()


async def test_merged_deltas_say_the_same() -> None:
    check = await compared(says(spoiled=-1))
    assert check.differing == []
    assert (check.streams, check.events, check.slow_events) == (8, 8 * 6, len(SCRIPTS) * 8)


async def test_one_other_word_in_one_stream_is_found() -> None:
    check = await compared(says(spoiled=6))
    assert len(check.differing) == 1
    assert check.differing[0].startswith(SCRIPTS[5 % len(SCRIPTS)])
    assert "one two four" in check.differing[0]
