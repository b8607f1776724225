"""Counts how much a reader must hold in each line and function: `python .ci/density.py [PATH ...]`.

Lines say little about size, because two lines can be packed into one. So this counts what they
hold: nodes of the syntax tree and certain idioms, in 1,000 lines of text, and the functions and
classes that ask most. Prints each figure that is over its limit, with the worst places, and each
name that several classes have; ends with status 1 if there are any. A file has twice the limit of
the average, so that none hides in the mean. The limits are near the densities of h11, httpcore,
websockets, starlette, nats-py and trio.
"""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("schemas", "services", "turnwire_tools")

PER_1000_LINES = {
    "nodes": 7150.0,
    "characters": 46_000.0,
    "conditional expressions": 12.5,
    "assignments of several values": 2.0,
    "comprehensions in comprehensions": 0.3,
    "assignment expressions": 1.0,
    "comparisons with None": 24.0,
}
"""The average limits, of lines that are not blank."""
IN_ALL = {
    "Callable types": 120,
    "partials": 30,
    "lambdas": 90,
    "heavy functions": 12,
    "large classes": 2,
}
PER_FILE = 2
"""A file may have this many times the average."""
OPTIONAL = 4
"""The same for comparisons with None: code that reads optional members has many."""
SMALL_FILE = 8
"""A file may have this many of an idiom, however short it is; what a shorter file has, in lines,
does not count."""
MAX_LOAD = 15
"""Branches of a function, twice its inner functions, and its exits after the third."""
MAX_FIELDS, MAX_METHODS = 15, 20
WORST = 5
"""How many places are printed for a figure."""

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
INNER = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.IfExp,
    ast.BoolOp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass
class FileCount:
    """What one file holds."""

    name: str
    lines: int = 0
    """Lines that are not blank."""
    counts: Counter[str] = field(default_factory=Counter)
    places: list[tuple[str, int, str]] = field(default_factory=list)
    """Kind, weight and description of each heavy function and large class."""
    classes: dict[str, str] = field(default_factory=dict)
    """The place of each class."""

    def density(self, kind: str) -> float:
        """The count in 1,000 lines."""
        return 1000 * self.counts[kind] / max(1, self.lines)


def count_file(name: str, source: str) -> FileCount:
    """Counts the idioms, functions and classes of a file."""
    text = [line for line in source.splitlines() if line.strip()]
    file = FileCount(name, len(text))
    file.counts["characters"] = sum(map(len, text))
    for node in ast.walk(ast.parse(source)):
        file.counts["nodes"] += 1
        file.counts.update(idioms_of(node))
        if isinstance(node, FUNCTIONS) and (load := load_of(node)) > MAX_LOAD:
            file.counts["heavy functions"] += 1
            place = f"{name}:{node.lineno} {node.name} has a load of {load}"
            file.places.append(("heavy functions", load, place))
        if isinstance(node, ast.ClassDef):
            count_class(file, node)
    return file


def idioms_of(node: ast.AST) -> Iterator[str]:
    """Yields the names of the idioms that a node is."""
    match node:
        case ast.IfExp():
            yield "conditional expressions"
        case ast.NamedExpr():
            yield "assignment expressions"
        case ast.Lambda():
            yield "lambdas"
        case ast.Assign(value=ast.Tuple(), targets=targets):
            if any(isinstance(target, ast.Tuple) for target in targets):
                yield "assignments of several values"
        case ast.Compare(comparators=values):
            if any(isinstance(value, ast.Constant) and value.value is None for value in values):
                yield "comparisons with None"
        case ast.Call(func=ast.Name(id="partial")):
            yield "partials"
        case ast.Subscript(value=ast.Name(id="Callable")):
            yield "Callable types"
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            if len(node.generators) > 1 or has_comprehension(node):
                yield "comprehensions in comprehensions"


def has_comprehension(node: ast.AST) -> bool:
    """Whether a comprehension has another one inside."""
    return any(isinstance(part, COMPREHENSIONS) for part in ast.walk(node) if part is not node)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function without those of functions inside it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, INNER):
            todo.extend(ast.iter_child_nodes(node))


def load_of(function: ast.AST) -> int:
    """Returns what a reader of a function must hold."""
    nodes = list(own_nodes(function))
    branches = sum(isinstance(node, BRANCHES) for node in nodes)
    inner = sum(isinstance(node, (*FUNCTIONS, ast.Lambda)) for node in nodes)
    exits = sum(isinstance(node, EXITS) for node in nodes)
    return branches + 2 * inner + max(0, exits - 3)


def count_class(file: FileCount, node: ast.ClassDef) -> None:
    """Notes a class, and counts it if it is several things."""
    file.classes[node.name] = f"{file.name}:{node.lineno}"
    fields = set(fields_of(node))
    methods = sum(isinstance(member, FUNCTIONS) for member in node.body)
    if len(fields) > MAX_FIELDS or methods > MAX_METHODS:
        file.counts["large classes"] += 1
        place = f"{file.name}:{node.lineno} {node.name}: {len(fields)} fields, {methods} methods"
        file.places.append(("large classes", len(fields) + methods, place))


def fields_of(node: ast.ClassDef) -> Iterator[str]:
    """Yields the names that a class assigns on `self`."""
    for part in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, ast.AnnAssign | ast.AugAssign):
            targets = [part.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                yield target.attr


def findings(files: list[FileCount]) -> Iterator[str]:
    """Yields a line for each figure that is over its limit, and for the places to look at."""
    whole = FileCount("all", sum(file.lines for file in files))
    for file in files:
        whole.counts.update(file.counts)

    for kind, limit in PER_1000_LINES.items():
        if whole.density(kind) > limit:
            yield f"{kind}: {whole.density(kind):.1f} in 1,000 lines, at most {limit:g}"
            densest = sorted(files, key=lambda file: file.counts[kind], reverse=True)
            for file in densest[:WORST]:
                yield f"    {file.name}: {file.counts[kind]} in {file.lines} lines"
        factor = OPTIONAL if kind == "comparisons with None" else PER_FILE
        for file in files:
            is_small = min(file.lines, file.counts[kind]) <= SMALL_FILE
            if file.density(kind) > factor * limit and not is_small:
                yield f"{file.name}: {file.density(kind):.1f} {kind} in 1,000 lines"

    for kind, limit in IN_ALL.items():
        if whole.counts[kind] > limit:
            yield f"{kind}: {whole.counts[kind]}, at most {limit}"
            places = [place for file in files for place in file.places if place[0] == kind]
            for _, _, place in sorted(places, key=lambda place: -place[1])[:WORST]:
                yield f"    {place}"
    yield from repeated_names(files)


def repeated_names(files: list[FileCount]) -> Iterator[str]:
    """Yields a line for each name that classes of several files have."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        for name, place in file.classes.items():
            places[name].append(place)
    for name, found in places.items():
        if len(found) > 1:
            yield f"class {name}: {', '.join(found)}"


def main(paths: list[str]) -> int:
    """Checks the files of the product, or only those under `paths`; returns the exit status."""
    command = ["git", "ls-files", "--", *(paths or SOURCES)]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split()
    sources = [name for name in names if name.endswith(".py") and (ROOT / name).is_file()]
    files = [count_file(name, (ROOT / name).read_text(encoding="utf-8")) for name in sources]
    found = list(findings(files))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
