"""Simulates one bus with its share of the streams, and makes the tables of the page."""

import resource
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.cpu import of_stage
from bench.large.messages import Heartbeats, frame_bytes, heartbeats, server_cost
from bench.large.routing import TURN_S, Bus, Shape, frames, links
from bench.report import Run
from bench.stats import Spread

STEPS_PER_S = 50
"""Steps of an engine that needs 20 ms a token."""


class Simulated(Struct, frozen=True):
    """The result for one bus with its share of the streams."""

    buses: int
    streams: int
    counts: dict[str, int]
    place_ms: Spread
    returned: float
    held: float
    fullest: float
    keys: int
    key_bytes: float
    fill_s: float
    turns_per_s: float
    heartbeats: Heartbeats
    token_frames: int
    event_frames: int
    """Event frames of one step."""


def simulate(arguments: tuple[int, int, int, int]) -> Simulated:
    """Simulates one bus. `arguments`: all streams, number of buses, rounds, seed."""
    total, buses, rounds, seed = arguments
    streams = total // buses
    bus = Bus(streams, Shape(), seed)
    before = _resident()
    result = bus.run(rounds)
    grown = _resident() - before
    tokens, events = frames(result.placed)
    assert result.place_ms is not None
    return Simulated(
        buses,
        streams,
        bus.counts,
        result.place_ms,
        result.returned,
        result.held,
        result.fullest,
        result.keys,
        grown / result.keys,
        result.fill_s,
        streams / TURN_S,
        heartbeats(bus.counts, links(result.placed)),
        tokens,
        events,
    )


def routing_table(results: Sequence[Simulated]) -> str:
    """Returns the table, with a column for each number of buses."""
    rows: list[tuple[str, list[str]]] = [
        ("streams of one bus", [f"{one.streams:,}" for one in results]),
        (
            "workers, parsers",
            [f"{one.counts['worker']:,}, {one.counts['parser']:,}" for one in results],
        ),
        (
            "frontends, preprocessors",
            [f"{one.counts['frontend']}, {one.counts['preprocessor']}" for one in results],
        ),
        ("**routing**", [""] * len(results)),
        ("turns placed per second", [f"{one.turns_per_s:,.0f}" for one in results]),
        (
            "CPU of one placement, p50 / p99",
            [f"{one.place_ms.p50:.2f} / {one.place_ms.p99:.2f} ms" for one in results],
        ),
        (
            "the same of all, over the preprocessors",
            [f"{one.turns_per_s * one.place_ms.p50 / 1000:.2f} cores" for one in results],
        ),
        ("later turns on the same worker", [_share(one.returned) for one in results]),
        ("prompt tokens in its cache", [_share(one.held) for one in results]),
        ("fullest worker ÷ average", [f"{one.fullest:.2f}" for one in results]),
        ("**KV index, in each preprocessor**", [""] * len(results)),
        ("keys", [f"{one.keys / 1e6:.2f} million" for one in results]),
        (
            "memory of the simulation, index and caches",
            [f"{one.keys * one.key_bytes / 2**20:,.0f} MiB" for one in results],
        ),
        ("CPU to fill it from snapshots", [f"{one.fill_s:.1f} s" for one in results]),
        ("**heartbeats**", [""] * len(results)),
        ("bytes of one", [f"{one.heartbeats.bytes:,.0f}" for one in results]),
        ("delivered by the bus", [f"{_delivered(one):,.0f} / s" for one in results]),
        (
            "the same in bytes",
            [f"{_delivered(one) * one.heartbeats.bytes / 1e6:,.1f} MB/s" for one in results],
        ),
        ("to read one", [f"{one.heartbeats.read_us:.0f} µs" for one in results]),
        (
            "CPU of that in **each** process",
            [
                f"{one.heartbeats.processes * one.heartbeats.read_us / 1e4:.1f} % of a core"
                for one in results
            ],
        ),
        ("**frames, at 50 tokens/s**", [""] * len(results)),
        ("token frames", [f"{one.token_frames * STEPS_PER_S:,} / s" for one in results]),
        ("streams in one", [f"{one.streams / one.token_frames:.1f}" for one in results]),
        ("event frames", [f"{one.event_frames * STEPS_PER_S:,} / s" for one in results]),
        ("bytes of both", [f"{_frame_bytes(one) / 1e6:,.0f} MB/s" for one in results]),
    ]
    head = ["", *(f"{one.buses} bus{'es' if one.buses > 1 else ''}" for one in results)]
    return _table([head, *([name, *cells] for name, cells in rows)])


def _share(value: float) -> str:
    """Formats a share; the first round has none."""
    return f"{value:.1%}" if value else "–"


def _delivered(one: Simulated) -> int:
    """Returns the heartbeats delivered per second: each process sends one, and all receive it."""
    return one.heartbeats.processes**2


def _frame_bytes(one: Simulated) -> float:
    token, event = (
        frame_bytes(one.streams / one.token_frames)[0],
        frame_bytes(one.streams / one.event_frames)[1],
    )
    return STEPS_PER_S * (one.token_frames * token + one.event_frames * event)


async def server_table() -> str:
    """Returns the table of nats-server's CPU per message."""
    rows = [
        [
            "message",
            "receivers",
            "CPU of nats-server for a delivery",
            "deliveries per second, with these clients",
        ]
    ]
    cases = ((200, 1, 30_000, "frame of one stream"), (1_000, 1, 30_000, "frame of ten streams"))
    for size, receivers, messages, text in (
        *cases,
        (500, 64, 1_500, "heartbeat"),
        (2_000, 64, 1_000, "heartbeat"),
    ):
        cost, rate = await server_cost(size, receivers, messages)
        rows.append([f"{text}, {size:,} bytes", str(receivers), f"{cost:.1f} µs", f"{rate:,.0f}"])
    return _table(rows)


def stages_table(run: Run, tokens_per_s: float, turn_s: float) -> str:
    """Returns the table of cores for 1,000 streams, from a result of `bench.load` with `stream` and
    `ttft`."""
    streams = [row for row in run.rows if row.case.scenario == "stream"]
    large = max(streams, key=lambda row: row.case.clients)
    prompts = [row for row in run.rows if row.case.scenario == "ttft"]
    longest = max(prompts, key=lambda row: row.prompt_tokens or 0)
    rows = [
        [
            "stage",
            f"CPU per token, {large.case.clients} streams",
            f"CPU per turn of {longest.prompt_tokens:,} tokens",
            f"cores for 1,000 streams at {tokens_per_s:g} tokens/s, a turn each {turn_s:g} s",
            "resident",
        ]
    ]
    total = 0.0
    for stage in ("frontend", "preprocessor", "worker", "parser", "nats"):
        token_us = sum(
            cost for name, cost in large.cpu_us_per_token.items() if of_stage(name) == stage
        )
        turn_ms = sum(
            cost for name, cost in longest.cpu_ms_per_request.items() if of_stage(name) == stage
        )
        cores = 1000 * tokens_per_s * token_us / 1e6 + 1000 / turn_s * turn_ms / 1e3
        total += cores
        held = [memory.rss for name, memory in large.memory.items() if of_stage(name) == stage]
        rows.append(
            [
                stage,
                f"{token_us:.1f} µs",
                f"{turn_ms:.2f} ms",
                f"{cores:.2f}",
                f"{max(held, default=0):.0f} MiB",
            ]
        )
    rows.append(["**all**", "", "", f"**{total:.2f}**", ""])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rest]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _resident() -> int:
    """Returns the resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
