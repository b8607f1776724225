"""The simulation of large deployments: it routes by the preprocessors' own code, and its tables
have figures."""

from pathlib import Path

import pytest

from bench.cpu import Cost, Memory
from bench.large import weights
from bench.large.__main__ import put
from bench.large.messages import frame_bytes, heartbeats
from bench.large.report import routing_table, simulate, stages_table
from bench.large.routing import Bus, Placed, Shape, frames, links
from bench.report import Machine, Run
from bench.rows import Case, Row


def test_sessions_return_to_their_worker() -> None:
    bus = Bus(120, Shape(slots=32, parser=60), seed=1)
    result = bus.run(rounds=3)
    assert result.turns == 360
    assert len(result.placed) == 120
    assert result.returned > 0.5
    assert result.held > 0.8
    assert result.keys > 120 * 30, "each session has blocks of its own"
    assert {one.parser for one in result.placed} == set(range(bus.counts["parser"]))


def test_sessions_that_start_cold_spread_where_load_weighs_enough() -> None:
    light, heavy = (
        weights.simulate(load_tokens, workers=4, sessions=20, turns=2)
        for load_tokens in (16_384, 1_048_576)
    )
    assert len(light.turn_s) == len(heavy.turn_s) == 40
    assert light.computed == weights.SHARED + 20 * (weights.OWN + weights.GROWTH), (
        "all are on one worker"
    )
    assert heavy.computed > light.computed
    assert sum(heavy.turn_s) < sum(light.turn_s)


def test_the_processes_for_a_number_of_streams() -> None:
    assert Shape().counts(96_000) == {
        "frontend": 96,
        "preprocessor": 24,
        "worker": 250,
        "parser": 192,
    }
    assert set(Shape().counts(1).values()) == {2}


def test_frames_are_one_for_each_worker_and_parser() -> None:
    placed = [Placed(0, 0, 0), Placed(0, 0, 0), Placed(0, 0, 1), Placed(0, 1, 0), Placed(1, 0, 0)]
    assert frames(placed) == (3, 4)
    assert links(placed) == {"worker": {0: 2, 1: 1}, "parser": {0: 2, 1: 1}}
    assert frame_bytes(10)[0] > frame_bytes(1)[0]


def test_heartbeats_grow_with_the_links() -> None:
    counts = {"frontend": 2, "preprocessor": 2, "worker": 4, "parser": 2}
    alone = heartbeats(counts, {})
    linked = heartbeats(
        counts, links([Placed(worker, parser, 0) for worker in range(4) for parser in range(2)])
    )
    assert alone.processes == 10
    assert linked.bytes > alone.bytes
    assert alone.read_us > 0


def test_the_table_has_a_column_for_each_number_of_buses() -> None:
    table = routing_table([simulate((60, buses, 1, 1)) for buses in (1, 2)])
    lines = table.splitlines()
    assert lines[0] == "|  | 1 bus | 2 buses |"
    assert all(line.count("|") == 4 for line in lines)
    assert "| streams of one bus | 60 | 30 |" in lines


def row(scenario: str, **given: object) -> Row:
    empty = dict.fromkeys(
        (
            "first_ttft_ms",
            "ttft_ms",
            "first_byte_ms",
            "itl_ms",
            "gap_ms",
            "worst_gap_ms",
            "send_lag_ms",
        )
    )
    filled = {
        "requests": 10,
        "failed": 0,
        "errors": {},
        "wall_s": 1.0,
        "tokens": 1000,
        "events": 1000,
    }
    more = {"prompt_tokens": 50_000, "tokens_per_s": 1000.0, "bytes_per_token": 1.0}
    return Row(Case(scenario, "chat", "keepalive", clients=10), **filled, **more, **empty, **given)  # type: ignore[arg-type]


def test_cores_are_those_of_tokens_and_of_turns() -> None:
    rows = [
        row(
            "stream",
            cost=Cost({"parser": 0.004, "parser-2": 0.001}, 0.0, 0.0),
            memory={"parser": Memory(80.0, 80.0)},
        ),
        row("ttft", cost=Cost({"parser": 0.02}, 0.0, 0.0), memory={}),
    ]
    run = Run("now", "", "", "", Machine(2, "", "", "", 0.0), rows)
    lines = stages_table(run, tokens_per_s=50.0, turn_s=20.0).splitlines()
    # 5 µs a token, 50,000 tokens/s; 2 ms a turn, 50 turns/s.
    assert "| parser | 5.0 µs | 2.00 ms | 0.35 | 80 MiB |" in lines
    assert lines[-1] == "| **all** |  |  | **0.35** |  |"


def test_a_page_gets_its_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench.large: server -->\nold\n<!-- /bench.large: server -->\nb\n")
    put(page, "server", "| new |")
    assert (
        page.read_text()
        == "a\n<!-- bench.large: server -->\n\n| new |\n\n<!-- /bench.large: server -->\nb\n"
    )
    with pytest.raises(ValueError, match="has no"):
        put(page, "routing", "x")
