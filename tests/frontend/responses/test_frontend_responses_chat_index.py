"""The list of stored chat completions in a bucket, on a real nats-server."""

import asyncio

from structlog.typing import FilteringBoundLogger

from services.frontend.apis.responses.store.chat_index import SPANS, ChatIndex
from services.frontend.apis.responses.store.shared import bucket_config
from tests.conftest import MakeProcess, make_bucket
from tests.frontend.responses.pair import CONFIG

TTL_S = 6400.0
SPAN_S = TTL_S / SPANS


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


async def indexes(make: MakeProcess, log: FilteringBoundLogger, clock: Clock) -> tuple[ChatIndex, ChatIndex]:
    processes = [await make("frontend", name) for name in ("i1", "i2")]
    buckets = [await make_bucket(process.bus, bucket_config(CONFIG), log) for process in processes]
    return ChatIndex(buckets[0], TTL_S, clock), ChatIndex(buckets[1], TTL_S, clock)


async def test_what_several_add_at_once_is_all_listed(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> None:
    clock = Clock()
    one, other = await indexes(make_process, quiet_log, clock)
    made = {(clock.now + number % 3, f"chatcmpl-{number}") for number in range(60)}
    entries = sorted(made)
    await asyncio.gather(*((one, other)[n % 2].add("many", at, id) for n, (at, id) in enumerate(entries)))
    assert await one.entries("many") == await other.entries("many") == made
    await one.add("many", *entries[0])
    assert await one.entries("many") == made


async def test_a_list_has_what_is_not_expired_of_one_tenant(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> None:
    clock = Clock()
    one, other = await indexes(make_process, quiet_log, clock)
    first = clock.now
    for number in range(3):
        await one.add("a", first + number * SPAN_S, f"chatcmpl-{number}")
    await one.add("b", first, "chatcmpl-b")
    await one.add(None, first, "chatcmpl-none")
    clock.now = first + 2 * SPAN_S
    assert {id for _, id in await other.entries("a")} == {"chatcmpl-0", "chatcmpl-1", "chatcmpl-2"}
    assert await other.entries("b") == {(first, "chatcmpl-b")}
    assert await other.entries(None) == {(first, "chatcmpl-none")}
    # Another host's clock is ahead.
    clock.now = first - SPAN_S
    assert await other.entries("b") == {(first, "chatcmpl-b")}
    clock.now = first + TTL_S + 2 * SPAN_S
    assert {id for _, id in await other.entries("a")} == {"chatcmpl-2"}
