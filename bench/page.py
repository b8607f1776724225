"""`python -m bench.page FILE`: writes a result of the suite into `docs/performance.md`, between its
markers.

The page has two places, one for capacity and one for all else. A place for which the result has no
figures stays as it is.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench import record as records
from bench.record import Record
from bench.sides import BASE
from bench.summary import CAPACITY, MEMORY, RATE, Line, disturbance, lines, number

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
REST = "rest"
"""Everything but capacity."""
MARKERS = {
    CAPACITY: ("<!-- bench.capacity -->", "<!-- /bench.capacity -->"),
    REST: ("<!-- bench.page -->", "<!-- /bench.page -->"),
}


def report(record: Record, name: str) -> str:
    """Returns a result's text for both places, and what failed. `name`: the result's file."""
    texts = [generated(record, name, place) for place in MARKERS]
    return "\n".join((*texts, *(f"failed: {problem}" for problem in record.failed)))


def generated(record: Record, name: str, place: str) -> str:
    """Returns the text of one place. `name`: the result's file."""
    found = [line for line in lines(record) if (line.group == CAPACITY) == (place == CAPACITY)]
    heading = record_heading(record, name)
    if place == CAPACITY:
        return "\n".join((heading, *_capacity(found, record), ""))
    parts = [heading, _peers(found, record)]
    for group in dict.fromkeys(line.group for line in found):
        parts.append(f"### {group}\n")
        parts += _tables(group, [line for line in found if line.group == group], record)
    return "\n".join(part for part in parts if part)


def record_heading(record: Record, name: str) -> str:
    """Returns when, on what and how a result was measured."""
    machine = record.machine
    sides = "; ".join(side.described for side in record.sides)
    where = f"{machine.cores} cores, {machine.processor}, {machine.system}, Python {machine.python}"
    return (
        f"{record.started[:10]}, {where}. {sides}. Medians of {record.repeat}; "
        f"{disturbance(record)}. `bench/results/{name}`.\n"
    )


def _peers(found: Sequence[Line], record: Record) -> str:
    """Returns the rows in which the best peer is ahead."""
    ours = record.sides[0].name
    compared = [(line.best_ratio(ours), line) for line in found]
    known = [(ratio, line) for ratio, line in compared if ratio is not None]
    if not known:
        return ""
    peer_ahead = sorted((one for one in known if one[0] < 1), key=lambda one: one[0])
    text = f"Ahead of the best peer in {len(known) - len(peer_ahead)} of {len(known)} rows."
    each = [
        f"- behind, {1 / ratio:.2f} times the best peer's: {line.what}, {line.unit}"
        for ratio, line in peer_ahead
    ]
    return "\n".join((text, "", *each)) + "\n"


def _capacity(found: Sequence[Line], record: Record) -> Iterator[str]:
    """Yields a row for each load, with all its figures; ratios to peers only for the rate."""
    ours, *peers = (side.name for side in record.sides)
    units = list(dict.fromkeys(line.unit for line in found))
    loads: dict[str, dict[str, Line]] = {}
    for line in found:
        loads.setdefault(line.what, {})[line.unit] = line

    headings = [""]
    for unit in units:
        headings += [f"{unit}: {ours}", *peers]
        if unit == RATE:
            headings += [f"× {peer}" for peer in peers]
    yield _row(headings)
    yield "|---|" + "---:|" * (len(headings) - 1)
    for what, by_unit in loads.items():
        cells = [what]
        for unit, line in by_unit.items():
            cells.append(f"**{number(line.values.get(ours))}**")
            cells += [number(line.values.get(peer)) for peer in peers]
            if unit == RATE:
                cells += [_ratio(line, ours, peer, digits=2) for peer in peers]
        yield _row(cells)


def _tables(group: str, some: Sequence[Line], record: Record) -> Iterator[str]:
    """Yields a table for each unit, unless each row has its own unit."""
    units = list(dict.fromkeys(line.unit for line in some))
    if group == MEMORY or len(units) == 1:
        yield "\n".join(_table(some, record)) + "\n"
        return
    for unit in units:
        table = _table([line for line in some if line.unit == unit], record)
        yield "\n".join((f"{unit}:", "", *table)) + "\n"


def _table(some: Sequence[Line], record: Record) -> Iterator[str]:
    ours, *peers = (
        side.name
        for side in record.sides
        if any(line.values.get(side.name) is not None for line in some)
    )
    with_unit = len({line.unit for line in some}) > 1
    left = ["", ""] if with_unit else [""]
    figures = [ours, *(heading for peer in peers for heading in (peer, "×"))]
    yield _row([*left, *figures])
    yield "|" + "---|" * len(left) + "---:|" * len(figures)
    for line in some:
        cells = [line.what, line.unit] if with_unit else [line.what]
        cells.append(f"**{number(line.values.get(ours))}**")
        for peer in peers:
            cells += [number(line.values.get(peer)), _ratio(line, ours, peer, digits=1)]
        yield _row(cells)


def _ratio(line: Line, ours: str, peer: str, *, digits: int) -> str:
    ratio = line.ratio(ours, peer)
    return "" if ratio is None else f"{ratio:.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(path: Path, place: str, page: Path = PAGE) -> None:
    """Updates one place of the page. Raises OSError, or ValueError if the result is not finished or
    the page has no markers."""
    record = records.load(path)
    if not record.finished or "quick" in record.label:
        raise ValueError(f"{path} is not the result of a whole run")
    # The base is of interest only during a change.
    record.sides = [side for side in record.sides if side.name != BASE]
    # A run of one part has lines of the start, too, which must not replace all others.
    if any(entry.part.startswith("capacity") == (place == CAPACITY) for entry in record.entries):
        replace_between(page, MARKERS[place], f"\n\n{generated(record, path.name, place)}\n")


def replace_between(page: Path, markers: tuple[str, str], text: str) -> None:
    """Replaces the text between two markers. Raises OSError, or ValueError without markers."""
    begin, end = markers
    before, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("result", type=Path, metavar="FILE", help="a result in bench/results")
    asked = parser.parse_args(argv)
    try:
        for place in MARKERS:
            write(asked.result, place)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        print(f"bench.page: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
