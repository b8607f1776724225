"""`python -m bench.suite`: measures all parts in one run and one table; with `--peer`, beside
Dynamo.

Both sides are up at once, with the same model directory, scripts and client, and each part is
measured on one, then on the other. Each repeat starts them again. The result file is written after
every part; `--resume FILE` continues it.
"""

import argparse
import asyncio
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from msgspec.structs import replace

from bench import page, report, summary
from bench import record as records
from bench.dynamo import install
from bench.measuring import site_of
from bench.model import build_bench_model
from bench.parts import PARTS, QUICK, SESSIONS, Sizes
from bench.record import Entry, Record, SideFacts
from bench.rows import Row
from bench.sides import BASE, Side, dynamo_side, turnwire_side
from bench.stack import STATE, Running, StackFailed, split
from sessions.published import of_trl

TEMPLATE = "qwen3_6"
"""The published chat template with which all sides are measured."""
ALL = tuple(dict.fromkeys(part.split()[0] for part in PARTS))

Say = Callable[[str], None]


class Suite:
    """One run over all sides."""

    def __init__(
        self, record: Record, path: Path, sides: Sequence[Side], sizes: Sizes, say: Say
    ) -> None:
        self.record = record
        self._path = path
        self._sides = sides
        self._sizes = sizes
        self._say = say
        self._seed = int(time.time()) % 10_000

    async def run(self, parts: Sequence[str]) -> None:
        """Measures what is not measured yet. SIGTERM cancels it, so that the stacks are ended."""
        running = asyncio.current_task()
        if running is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        for repeat in range(1, self.record.repeat + 1):
            for session in SESSIONS:
                chosen = [part for part in session if part in parts or part.split()[0] in parts]
                await self._session(repeat, chosen)
        self.record.finished = report.now()
        records.save(self.record, self._path)

    async def _session(self, repeat: int, parts: Sequence[str]) -> None:
        """Starts every side that has something to do, and goes from part to part, and from side to
        side."""
        missing = {
            side.name: [part for part in parts if not self.record.has(side.name, repeat, part)]
            for side in self._sides
        }
        async with AsyncExitStack() as opened:
            up: dict[str, Running] = {}
            for side in self._sides:
                if missing[side.name]:
                    self._say(f"repeat {repeat} of {self.record.repeat}: starting {side.name}")
                    up[side.name] = await opened.enter_async_context(side.open())
                    self.record.side(side.name).start_s.append(up[side.name].start_s)
            for part in parts:
                for side in self._sides:
                    if part in missing[side.name]:
                        await self._measure(side, repeat, part, up[side.name])

    async def _measure(self, side: Side, repeat: int, part: str, up: Running) -> None:
        self._seed += 1_000
        began = time.monotonic()
        rows: list[Row] = []
        problem = ""
        try:
            async for row in PARTS[part](site_of(up, self._seed), self._sizes):
                rows.append(row)
        # The other parts may succeed.
        except (OSError, ValueError, msgspec.MsgspecError, ExceptionGroup) as error:
            problem = f"{type(error).__name__}: {error}"
        took_s = round(time.monotonic() - began, 1)
        entry = Entry(side.name, repeat, part, took_s, rows, problem)
        self._say(summary.brief(entry))
        self.record.put(entry)
        records.save(self.record, self._path)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.suite",
        description="What Turnwire costs, in one table; with --peer, beside Dynamo on the same "
        "machine.",
        epilog="Everything after -- goes to `turnwire up`.",
    )
    add = parser.add_argument
    add("--peer", action="store_true", help="beside Dynamo, which is installed if need be")
    add("--base", type=Path, metavar="PATH", help="also beside another checkout of Turnwire")
    spelled = "the chat template of all sides, whose calls are spelled as Qwen3-Coder's"
    default = "default: Qwen3.6's of the package trl, else the demo model's"
    add("--template", type=Path, metavar="FILE", help=f"{spelled}; {default}")
    add("--quick", action="store_true", help="small and short cases: does it work?")
    add("--repeat", type=int, default=1, help="all of it, so often: A B A B; medians are shown")
    add("--parts", default=",".join(ALL), help="of %(default)s; or as `capacity turn 100`")
    add("--resume", type=Path, metavar="FILE", help="goes on with a result that is not finished")
    add("--out", type=Path, metavar="FILE", help="result file; default: one in bench/results")
    return parser


def sides(asked: argparse.Namespace, flags: Sequence[str], say: Say) -> list[Side]:
    """What is to be compared. Raises OSError, ValueError, subprocess.CalledProcessError."""
    if asked.base and not (asked.base / "services").is_dir():
        raise ValueError(f"no checkout of Turnwire: {asked.base}")
    template = asked.template or of_trl().get(TEMPLATE)
    name = f"model-{template.stem}" if template else "model"
    model = build_bench_model(STATE / name, template)
    found = [turnwire_side(model, tuple(flags))]
    if asked.base:
        found.append(turnwire_side(model, tuple(flags), asked.base.resolve(), BASE))
    if asked.peer:
        found.append(dynamo_side(install.install(say), model))
    if template:
        own = f"{found[0].described}, template {template.name}"
        found[0] = replace(found[0], described=own)
    return found


def open_record(
    asked: argparse.Namespace, found: Sequence[Side], sizes: Sizes
) -> tuple[Record, Path]:
    """The record that is to be filled, and where it lies. Raises OSError, ValueError."""
    facts = [SideFacts(side.name, side.described) for side in found]
    plain_sizes = msgspec.json.decode(msgspec.json.encode(sizes), type=dict[str, object])
    if asked.resume:
        record = records.load(asked.resume)
        names = [[one.name for one in some] for some in (record.sides, facts)]
        if names[0] != names[1] or record.sizes != plain_sizes:
            raise ValueError(f"{asked.resume} has other sides or sizes: use the same options")
        return record, asked.resume
    label = ("peer" if asked.peer else "alone") + "-quick" * asked.quick
    if asked.parts != ",".join(ALL):
        chosen = dict.fromkeys(part.split()[0] for part in asked.parts.split(","))
        label = "-".join((label, *chosen))
    started = report.now()
    record = Record(started, label, report.this_machine(), asked.repeat, plain_sizes, facts)
    return record, asked.out or report.new_path(started, label)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suite. Returns 0 if all answers were good; 1 if not, or if it could not run."""
    own, for_stack = split(sys.argv[1:] if argv is None else argv)
    asked = arguments().parse_args(own)

    say = partial(print, flush=True)
    try:
        if unknown := set(asked.parts.split(",")) - {*ALL, *PARTS}:
            raise ValueError(
                f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(ALL)}"
            )
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        sizes = QUICK if asked.quick else Sizes()
        found = sides(asked, for_stack, say)
        record, path = open_record(asked, found, sizes)
    except (ValueError, OSError, msgspec.MsgspecError, subprocess.CalledProcessError) as error:
        print(f"bench.suite: {error}", file=sys.stderr)
        return 1
    record.finished = ""
    try:
        suite = Suite(record, path, found, sizes, say)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
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
    say(page.report(record, path.name))
    say(f"written to {path}")
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
