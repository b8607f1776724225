"""`python -m bench.peer`: the same load on our own stack and on a peer that is running, in turn: A B A B.

The peer's worker must play `bench/scripts` (text, fill and marks, chosen by a directive in the prompt), and its
processes must be on this machine for their CPU time to be known.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from bench import compare, report
from bench.load import arguments, loop_factory, make_console, prepare, split, understand
from bench.rows import Row
from bench.runs import Say, cases, open_run
from bench.stack import StackFailed


def parser() -> argparse.ArgumentParser:
    """The load generator's command line and the peer's."""
    both = arguments("python -m bench.peer", "The same load on our own stack and on a peer, in turn.")
    peer = both.add_argument_group("the peer")
    peer.add_argument("--peer-url", required=True, help="base URL")
    peer.add_argument("--peer-model", help="name of the model; default: the first that the peer lists")
    peer.add_argument("--peer-pid", action="append", default=[], metavar="NAME=PID", help="a process; repeatable")
    peer.add_argument("--peer-marks", type=Path, metavar="FILE", help="marks of the peer's script player")
    peer.add_argument("--peer-name", default="peer", help="for the result's file name")
    return both


def of_peer(asked: argparse.Namespace) -> argparse.Namespace:
    """The same load as `asked`, on the peer."""
    changes = {
        "url": asked.peer_url,
        "model": asked.peer_model,
        "pid": asked.peer_pid,
        "marks": asked.peer_marks,
        "up": None,
        "nats": None,
        "label": asked.peer_name,
    }
    return argparse.Namespace(**(vars(asked) | changes))


async def run(asked: argparse.Namespace, stack_arguments: Sequence[str], say: Say) -> tuple[report.Run, report.Run]:
    """Ours and the peer's, `--repeat` times in turn. Raises as `open_run` does."""
    rows: tuple[list[Row], list[Row]] = ([], [])
    async with open_run(asked, stack_arguments) as (ours, site), open_run(of_peer(asked), ()) as (peers, peer_site):
        for turn in range(asked.repeat):
            for name, where, found in (("ours", site, rows[0]), (asked.peer_name, peer_site, rows[1])):
                say(f"{name}, {turn + 1} of {asked.repeat}")
                found.extend(await cases(where, asked, say))
    return replace(ours, rows=rows[0]), replace(peers, rows=rows[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both; statuses as those of `bench.load`."""
    own, behind = split(sys.argv[1:] if argv is None else argv)
    asked = understand(parser().parse_args(own))
    console = make_console()
    try:
        prepare(asked)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runs = runner.run(run(asked, behind, lambda line: console.print(line, highlight=False)))
    except (StackFailed, ValueError, OSError, aiohttp.ClientError) as error:
        print(f"bench.peer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    for one in runs:
        path = report.save(one, asked.out and asked.out.with_stem(f"{asked.out.stem}-{one.label or 'ours'}"))
        report.show(one, console)
        console.print(f"written to {path}", highlight=False)
    compare.show(list(compare.compare(runs[0].rows, runs[1].rows)), console)
    return 1 if any(row.failed for one in runs for row in one.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
