"""`python -m bench.load`: puts load on any base URL, or on a stack of our own that runs
meanwhile."""

import argparse
import asyncio
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import aiohttp
from msgspec.structs import replace
from rich.console import Console

from bench import report
from bench.apis import APIS
from bench.client import MODES
from bench.loops import Arrivals
from bench.prompts import KINDS, Size
from bench.runs import Say, cases, open_run
from bench.scenarios import DISPATCH_SCRIPTS
from bench.stack import StackFailed

T = TypeVar("T")
SCENARIOS = ("ttft", "stream", "open", "dispatch")


def arguments(
    program: str = "python -m bench.load",
    description: str = "Load on a serving path, and what it costs. Without --url a stack of our "
    "own "
    "is "
    "started.",
) -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog="Everything after -- goes to `turnwire up`, e.g. -- --parsers 2 --workers 2",
    )
    parser.add_argument(
        "scenario", nargs="*", choices=[*SCENARIOS, []], help="default: all of them"
    )
    where = parser.add_argument_group("where")
    where.add_argument("--url", help="base URL of a running server")
    where.add_argument(
        "--model", help="name of the model; default: the first that the server lists"
    )
    where.add_argument("--api", choices=sorted(APIS), default="messages")
    where.add_argument("--key", help="API key")
    where.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="NAME=PID",
        help="a process to meter; repeatable",
    )
    where.add_argument(
        "--up", type=int, metavar="PID", help="a `turnwire up` whose stages are to be metered"
    )
    where.add_argument(
        "--nats", metavar="URL", help="listen to tokens on this bus, for the dispatch lag"
    )
    where.add_argument(
        "--marks",
        type=Path,
        metavar="FILE",
        help="marks of the script player, for the dispatch lag",
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--sizes",
        type=_several(get_args(Size)),
        default=["small", "large"],
        help="of ttft's prompts",
    )
    what.add_argument(
        "--kinds", type=_several(KINDS), default=list(KINDS), help="of ttft's prompts"
    )
    what.add_argument(
        "--connections",
        type=_several(MODES),
        default=["keepalive", "fresh"],
        help="the first: streams'",
    )
    what.add_argument(
        "--requests",
        type=int,
        default=30,
        help="of a sequence (ttft), or of all of dispatch's clients",
    )
    what.add_argument("--streams", type=_numbers(int), default=[1, 16, 64, 256], metavar="N,N,…")
    what.add_argument(
        "--delays",
        type=_numbers(float),
        default=[10.0, 0.0],
        metavar="MS,MS",
        help="between tokens",
    )
    what.add_argument("--each", type=int, help="requests of each client of stream")
    what.add_argument("--tokens", type=int, default=512, help="of a stream; dispatch has 200")
    what.add_argument("--rate", type=float, default=5.0, help="requests per second of open")
    what.add_argument("--duration", type=float, default=10.0, metavar="S", help="of open")
    what.add_argument("--arrivals", choices=get_args(Arrivals), default="poisson")
    what.add_argument(
        "--scripts",
        type=_several(DISPATCH_SCRIPTS),
        default=list(DISPATCH_SCRIPTS),
        help="of dispatch",
    )
    what.add_argument("--quick", action="store_true", help="few and short cases: does it work?")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--repeat", type=int, default=1, help="the whole list, so often; tables show medians"
    )
    how.add_argument("--timeout", type=float, default=120.0, metavar="S", help="for one request")
    how.add_argument(
        "--quiet",
        type=float,
        default=0.0,
        metavar="S",
        help="wait for an idle machine before each case",
    )
    how.add_argument("--nice", type=int, default=0, help="of this client; below 0 only for root")
    how.add_argument("--label", default="", help="for the result's file name")
    how.add_argument("--out", type=Path, help="result file; default: one in bench/results")
    return parser


async def run(asked: argparse.Namespace, stack_arguments: Sequence[str], say: Say) -> report.Run:
    """Runs all requested cases. Raises StackFailed, ValueError, OSError, aiohttp.ClientError."""
    if asked.url is None:
        say("starting a stack of our own")
    async with open_run(asked, stack_arguments) as (opened, site):
        rows = [row for _ in range(asked.repeat) for row in await cases(site, asked, say)]
    return replace(opened, rows=rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the load. Returns 0 if all answers were good; 1 if not, or if it could not run; 2 for
    wrong usage."""
    own, behind = split(sys.argv[1:] if argv is None else argv)
    asked = understand(arguments().parse_args(own))
    console = make_console()
    try:
        prepare(asked)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            result = runner.run(
                run(asked, behind, lambda line: console.print(line, highlight=False))
            )
    except (StackFailed, ValueError, OSError, aiohttp.ClientError) as error:
        print(f"bench.load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    path = report.save(result, asked.out)
    report.show(result, console)
    console.print(f"written to {path}", highlight=False)
    return 1 if any(row.failed for row in result.rows) else 0


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments at `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def understand(asked: argparse.Namespace) -> argparse.Namespace:
    """Fills in options that follow from others."""
    asked.scenario = asked.scenario or list(SCENARIOS)
    if asked.quick:
        asked.requests, asked.streams, asked.each, asked.duration = 6, [1, 16], 1, 3.0
        asked.kinds, asked.scripts = ["tail", "head"], ["call_then_text"]
    return asked


def prepare(asked: argparse.Namespace) -> None:
    """Prepares this process to be the client: its limit of sockets, its priority. Raises
    OSError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if asked.nice:
        os.nice(asked.nice)


def make_console() -> Console:
    """Makes the console, wide enough for the tables without a terminal."""
    return Console(width=None if sys.stdout.isatty() else 180)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's loops, if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _several(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return names

    return parse


def _numbers(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse(text: str) -> list[T]:
        return [kind(part) for part in text.split(",")]

    return parse


if __name__ == "__main__":
    sys.exit(main())
