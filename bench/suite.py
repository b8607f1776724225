"""`python -m bench.suite`: measures all parts in one run and one table; with `--peer`, beside
Dynamo.

Both sides are up at once, with the same model directory, scripts and client, and each part is
measured on one, then on the other. Each repeat starts them again. The result file is written after
every part; `--resume FILE` continues it.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench import record as records
from bench import summary
from bench.apis import APIS
from bench.dynamo import install
from bench.load import loop_factory, make_console, prepare, split
from bench.model import build_bench_model
from bench.parts import PARTS, QUICK, SESSIONS, Sizes, flat_out
from bench.record import Entry, Record, SideFacts
from bench.report import now, this_machine
from bench.rows import Row
from bench.sameness import compare
from bench.sides import BASE, OURS, Dynamo, Side, Turnwire, Up
from bench.stack import STATE, StackFailed

ALL = (*dict.fromkeys(part.split()[0] for part in PARTS), "contents", "scale")
CAPTURES = Path(os.environ.get("AGENT_CAPTURES_DIR", "no captures"))

Say = Callable[[str], None]


class Suite:
    """One run over all sides."""

    def __init__(
        self,
        record: Record,
        path: Path,
        sides: Sequence[Side],
        sizes: Sizes,
        say: Say,
        *,
        quiet_s: float = 0.0,
    ) -> None:
        """`quiet_s`: how long to wait, before each case, for an idle machine."""
        self.record = record
        self._path = path
        self._sides = sides
        self._sizes = sizes
        self._say = say
        self._quiet_s = quiet_s
        self._seed = int(time.time()) % 10_000

    async def run(self, parts: Sequence[str]) -> None:
        """Measures what is not measured yet. SIGTERM cancels it, so that the stacks are ended."""
        running = asyncio.current_task()
        if running is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        for repeat in range(1, self.record.repeat + 1):
            await self._repeat(repeat, parts)
        self.record.finished = now()
        records.save(self.record, self._path)

    async def _repeat(self, repeat: int, parts: Sequence[str]) -> None:
        """All parts once on all sides."""
        for session in SESSIONS:
            await self._session(
                repeat, [part for part in session if part in parts or part.split()[0] in parts]
            )
        if "scale" in parts:
            await self._scale(repeat)

    async def _session(self, repeat: int, parts: Sequence[str]) -> None:
        """Starts every side that has something to do, and goes from part to part, and from side to
        side."""
        wanted = {
            side.name: [part for part in parts if self._missing(side, repeat, part)]
            for side in self._sides
        }
        async with AsyncExitStack() as opened:
            up: dict[str, Up] = {}
            for side in self._sides:
                if wanted[side.name]:
                    self._say(f"repeat {repeat} of {self.record.repeat}: starting {side.name}")
                    up[side.name] = await opened.enter_async_context(side.open())
                    self.record.side(side.name).start_s.append(up[side.name].start_s)
            for part in parts:
                for side in self._sides:
                    if part not in wanted[side.name]:
                        continue
                    if part == "contents":
                        await self._contents(up[side.name])
                    else:
                        await self._measure(side, repeat, part, up[side.name])

    def _missing(self, side: Side, repeat: int, part: str) -> bool:
        if part not in side.parts:
            return False
        if part == "contents":
            return len(self.record.checks) < len(APIS)
        return not self.record.has(side.name, repeat, part)

    async def _measure(self, side: Side, repeat: int, part: str, up: Up) -> None:
        self._seed += 1_000
        began = time.monotonic()
        rows: list[Row] = []
        problem = ""
        try:
            site = replace(up.site, seed=self._seed, quiet_wait_s=self._quiet_s)
            async for row in PARTS[part](site, side.fit(self._sizes)):
                rows.append(row)
        except (
            OSError,
            ValueError,
            msgspec.MsgspecError,
            ExceptionGroup,
        ) as error:  # the other parts may succeed
            problem = f"{type(error).__name__}: {error}"
        entry = Entry(side.name, repeat, part, _since(began), rows, problem)
        self._say(summary.brief(entry))
        self._keep(entry)

    async def _contents(self, up: Up) -> None:
        self.record.checks.clear()
        for api in APIS.values():
            site = replace(up.site, api=api)
            check = await compare(site, self._sizes.contents_streams, self._sizes.contents_tokens)
            self._say(summary.brief_check(check))
            self.record.checks.append(check)
        records.save(self.record, self._path)

    async def _scale(self, repeat: int) -> None:
        """Our own stack with more of a stage, flat out."""
        ours = self._sides[0]
        if not isinstance(ours, Turnwire):
            return
        for flag in self._sizes.scale:
            name = flag.removeprefix("--").replace("=", " ")
            part = f"scale {name}"
            if self.record.has(OURS, repeat, part):
                continue
            began = time.monotonic()
            async with replace(ours, flags=(*ours.flags, flag)).open() as up:
                row = await flat_out(up.site, self._sizes)
            case = replace(row.case, scenario="scale", prompt=name)
            self._keep(Entry(OURS, repeat, part, _since(began), [replace(row, case=case)]))
            self._say(summary.brief(self.record.entries[-1]))

    def _keep(self, entry: Entry) -> None:
        self.record.put(entry)
        records.save(self.record, self._path)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.suite",
        description="What Turnwire costs, in one table; with --peer, beside Dynamo on the same "
        "machine.",
        epilog="Everything after -- goes to `turnwire up`.",
    )
    parser.add_argument(
        "--peer", action="store_true", help="beside Dynamo, which is installed if need be"
    )
    parser.add_argument(
        "--base", type=Path, metavar="PATH", help="also beside another checkout of Turnwire"
    )
    parser.add_argument(
        "--mocker", action="store_true", help="also beside Dynamo with its mock engine, flat out"
    )
    parser.add_argument("--quick", action="store_true", help="small and short cases: does it work?")
    parser.add_argument(
        "--repeat", type=int, default=1, help="all of it, so often: A B A B; the table has medians"
    )
    parser.add_argument(
        "--parts",
        default=",".join(ALL),
        help="default: %(default)s; or one of a part, as `capacity turn 100`",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on with a result that is not finished"
    )
    parser.add_argument(
        "--captures", type=Path, default=CAPTURES, help="recorded requests of real clients, if any"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="result file; default: one in bench/results"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.0,
        metavar="S",
        help="wait for an idle machine before each case",
    )
    parser.add_argument("--nice", type=int, default=0, help="of the client; below 0 only for root")
    return parser


def sides(asked: argparse.Namespace, flags: Sequence[str], say: Say) -> list[Side]:
    """What is to be compared. Raises OSError, ValueError, subprocess.CalledProcessError."""
    model = build_bench_model(STATE / "model")
    found: list[Side] = [Turnwire(model, tuple(flags))]
    if asked.base:
        root = asked.base.resolve()
        if not (root / "services").is_dir():
            raise ValueError(f"no checkout of Turnwire: {asked.base}")
        found.append(Turnwire(model, tuple(flags), root, BASE))
    if asked.peer or asked.mocker:
        python = install.install(say)
        found.append(Dynamo(python, model))
        if asked.mocker:
            found.append(Dynamo(python, model, name="dynamo-mocker", mock_engine=True))
    return found


def open_record(
    asked: argparse.Namespace, found: Sequence[Side], sizes: Sizes
) -> tuple[Record, Path]:
    """The record that is to be filled, and where it lies. Raises OSError, ValueError."""
    facts = [SideFacts(side.name, side.described) for side in found]
    if asked.resume:
        record = records.load(asked.resume)
        if [one.name for one in record.sides] != [one.name for one in facts]:
            raise ValueError(
                f"{asked.resume} compares {[one.name for one in record.sides]}: give the same "
                "options"
            )
        if record.sizes != plain(sizes):
            raise ValueError(f"{asked.resume} has cases of another size: give the same options")
        return record, asked.resume
    label = ("peer" if asked.peer else "alone") + "-quick" * asked.quick
    if asked.parts != ",".join(ALL):
        label += "".join(
            f"-{name}" for name in dict.fromkeys(part.split()[0] for part in asked.parts.split(","))
        )
    record = Record(now(), label, this_machine(), asked.repeat, plain(sizes), facts)
    return record, asked.out or records.default_path(record)


def plain(sizes: Sizes) -> dict[str, object]:
    """The sizes as they stand in a file."""
    return msgspec.json.decode(
        msgspec.json.encode(replace(sizes, captures=None)), type=dict[str, object]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suite. Returns 0 if all answers were good and equal; 1 if not, or if it could not
    run."""
    own, behind = split(sys.argv[1:] if argv is None else argv)
    asked = arguments().parse_args(own)
    console = make_console()

    def say(line: str) -> None:
        console.print(line, highlight=False)

    try:
        if unknown := set(asked.parts.split(",")) - {*ALL, *PARTS}:
            raise ValueError(
                f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(ALL)}"
            )
        prepare(asked)
        captures = asked.captures if asked.captures.is_dir() else None
        sizes = replace(QUICK if asked.quick else Sizes(), captures=captures)
        found = sides(asked, behind, say)
        record, path = open_record(asked, found, sizes)
    except (ValueError, OSError, msgspec.MsgspecError, subprocess.CalledProcessError) as error:
        print(f"bench.suite: {error}", file=sys.stderr)
        return 1
    record.finished = ""
    try:
        suite = Suite(record, path, found, sizes, say, quiet_s=asked.quiet)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(suite.run(asked.parts.split(",")))
    except (StackFailed, ValueError, OSError) as error:
        print(f"bench.suite: {error}", file=sys.stderr)
    except (KeyboardInterrupt, asyncio.CancelledError):
        pass
    if not record.finished:
        print(
            f"bench.suite: not finished; go on with the same options and --resume {path}",
            file=sys.stderr,
        )
        return 1
    summary.show(record, console)
    say(f"written to {path}")
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
