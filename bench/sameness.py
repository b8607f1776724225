"""Compares the contents of streams on a running stack at full load and one at a time."""

import json
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from bench.contents import Event, NotAStream, canonical, difference
from bench.exchange import Exchange
from bench.loops import closed_loop
from bench.measuring import Site
from bench.prompts import NUMBER, story_prompt

SCRIPTS = ("contents_text", "contents_reasoning", "contents_call", "contents_turn")
SLOW_DELAY_MS = 3.0


class Check(Struct, frozen=True):
    """The result for one API."""

    api: str
    streams: int
    """Streams at full load."""
    events: int
    """Events of these streams, deltas as they came."""
    slow_events: int
    """Events of one stream for each script, one at a time."""
    differing: list[str]
    """Differences from the streams of the slow run; empty if there are none."""


async def compare(site: Site, streams: int, tokens: int) -> Check:
    """Runs one stream of each script at a pace, then `streams` at once, flat out; compares them."""
    client = site.client("keepalive")
    try:
        slow: dict[str, list[Event]] = {}
        slow_events = 0
        for script in SCRIPTS:
            for _ in range(2):  # from the second on, the prefix is in the cache
                exchange = await client.exchange(
                    _body(site, script, tokens, SLOW_DELAY_MS, 0), keep=True
                )
            slow[script] = _read(site, exchange)
            slow_events += exchange.events

        def body(number: int) -> bytes:
            return _body(site, SCRIPTS[number % len(SCRIPTS)], tokens, 0, number + 1)

        done = await closed_loop(client, body, streams, 1, keep=True)
    finally:
        client.close()
    differing = [
        f"{SCRIPTS[number % len(SCRIPTS)]}: {found}"
        for number, exchange in enumerate(done)
        if (found := _found(site, exchange, slow[SCRIPTS[number % len(SCRIPTS)]]))
    ]
    return Check(site.api.name, streams, sum(one.events for one in done), slow_events, differing)


def _body(site: Site, script: str, tokens: int, delay_ms: float, number: int) -> bytes:
    prompt = replace(
        story_prompt(f"{script} n={tokens} delay={delay_ms:g} id={NUMBER.decode()}"), thinking=True
    )
    return json.dumps(site.api.body(prompt, site.model)).encode().replace(NUMBER, b"%08d" % number)


def _found(site: Site, exchange: Exchange, slow: Sequence[Event]) -> str | None:
    try:
        return difference(slow, _read(site, exchange))
    except NotAStream as error:
        return str(error)


def _read(site: Site, exchange: Exchange) -> list[Event]:
    if not exchange.finished:
        raise NotAStream(exchange.error or "no end")
    return canonical(site.api.name, b"".join(block for _, block in exchange.blocks or []))
