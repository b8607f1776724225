"""The cases in which one request follows the other and the worker answers at once: time to first
token, by prompt."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from bench.client import Mode
from bench.codex import codex_body
from bench.loops import closed_loop
from bench.measuring import Site, measured
from bench.prompts import Kind, Size, make_body
from bench.recorded import recorded_bodies
from bench.rows import Case, Row

ANSWER_TOKENS = 16
PLAY = f"text n={ANSWER_TOKENS} delay=0"

MakeBody = Callable[[int], bytes]


async def ttft(
    site: Site, sizes: Sequence[Size], kinds: Sequence[Kind], modes: Sequence[Mode], requests: int
) -> AsyncIterator[Row]:
    """Prompts in the shape of Claude Code's."""
    for number, (size, kind, mode) in enumerate(
        (s, k, m) for s in sizes for k in kinds for m in modes
    ):
        make = make_body(
            site.api,
            site.model,
            size=size,
            kind=kind,
            play=PLAY,
            seed=site.seed + number * requests,
        )
        yield await sequence(
            site, Case("ttft", site.api.name, mode, prompt=f"{size} {kind}"), make, requests
        )


async def codex(
    site: Site, modes: Sequence[Mode], requests: int, *, plain: bool
) -> AsyncIterator[Row]:
    """Prompts in the shape of Codex's."""
    for number, (head, mode) in enumerate((h, m) for h in (True, False) for m in modes):
        name = f"codex{' plain' if plain else ''} {'head' if head else 'tail'}"
        make = codex_body(
            site.model, PLAY, plain=plain, head=head, seed=site.seed + number * requests
        )
        yield await sequence(site, Case("ttft", site.api.name, mode, prompt=name), make, requests)


async def recorded(
    site: Site, modes: Sequence[Mode], requests: int, captures: Path
) -> AsyncIterator[Row]:
    """What clients did send, each recording again and again with a new end."""
    bodies = recorded_bodies(captures, site.api.name, site.model, PLAY, site.seed)
    for mode in modes if bodies else ():
        rounds = max(3, requests // len(bodies))

        def make(number: int) -> bytes:
            return bodies[number % len(bodies)](number)

        yield await sequence(
            site, Case("ttft", site.api.name, mode, prompt="recorded"), make, rounds * len(bodies)
        )


async def sequence(site: Site, case: Case, make: MakeBody, requests: int) -> Row:
    """`requests` requests, one after the other."""
    bodies = [make(number) for number in range(requests)]
    client = site.client(case.mode)
    try:
        return await measured(
            site, case, lambda: closed_loop(client, bodies.__getitem__, 1, requests), sequence=True
        )
    finally:
        client.close()
