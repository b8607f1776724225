"""Finds sentences that readers stop at, in docstrings, comments and pages: `python .ci/words.py [PATH ...]`.

Prints the place, the sentence and the cure for each, and ends with status 1 if there are any. Strings that are data are
not read. A sentence that needs such a word is an exception in `RULES`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = (
    "schemas/*.py",
    "services/*.py",
    "turnwire_tools/*.py",
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
COMPARED = (
    "longer|more|other|different|better|worse|less|fewer|later|earlier|sooner|greater|larger|smaller|faster|slower"
)
PLACES = "balancer|firewall|frontend|gateway|load|NAT|prox(?:y|ies)|router|server"
LATE = "falls?|falling|fell|lags?|lagging|leaves?|left|stays?|ms|far"
CODE = re.compile(r"```.*?```|``.+?``|`[^`]*`", re.DOTALL)


class Text(NamedTuple):
    """A docstring, a comment or a page, and the line at which it begins."""

    kind: str
    line: int
    text: str


RULES = [
    (re.compile(pattern, re.IGNORECASE), kinds, cure)
    for pattern, kinds, cure in (
        (r"\A(?:of|their|those|by(?! default)|the same)\b", ("docstring",), "begin with the noun or the verb"),
        (r"\Asee `[^`]*`\.?\Z", ("docstring",), "say in a sentence what differs, or leave it to @override"),
        (rf"(?<!there )\b(?:is|are|was|were) no (?!(?:{COMPARED})\b)\w+", (), "is not a …, or has no …"),
        (r"\bof which it\b", (), "two sentences, subject first"),
        (r"\bwhose\b", (), "with, that has, or a second sentence"),
        (rf"(?<!\b(?:fall|lags|left|stay) )\bbehind\b(?! (?:\w+ ){{0,2}}(?:{PLACES})\b)", (), "after, following"),
        (r"\b(?:if|unless|was|were|one|none) given\b(?! (?:up|back)\b)", (), "set, passed, sent, configured"),
        (r"\banew\b", (), "again"),
        (r"\bwhoever\b", (), "name the process or the person"),
        (r"\bsuch as are\b", (), "that are"),
        (r"\belse than\b", (), "other than"),
        (r"\bso many\b", (), "the number, or too many"),
    )
]


def texts(path: Path) -> Iterator[Text]:
    """The texts of a file that people read: a page, or the docstrings and comments of a module."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield Text("page", 1, source)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text("docstring", node.lineno, node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text("comment", token.start[0], token.string.lstrip("# "))


def findings(text: Text) -> Iterator[tuple[int, str, str]]:
    """Each place in a text: its line, its sentence, the cure. Code in backticks is not read."""
    prose = CODE.sub(lambda code: re.sub(r"\S", "·", code[0]), text.text)
    for pattern, kinds, cure in RULES:
        ours = text.text.strip() if pattern.pattern.startswith(r"\Asee") else re.sub(r"\s", " ", prose)
        for found in pattern.finditer(ours) if not kinds or text.kind in kinds else ():
            start = max(ours.rfind(end, 0, found.start()) + 2 for end in (". ", ": ", "| ", "- "))
            end = re.compile(r"[.|](?= |\Z)|\Z").search(ours, found.end())
            sentence = " ".join(text.text[max(start, 0) : end.end() if end else None].split())
            yield text.line + text.text.count("\n", 0, found.start()), sentence, cure


def main(paths: list[str]) -> int:
    """Checks the files of the repository, or only those under `paths`; returns the exit status."""
    tracked = subprocess.check_output(["git", "ls-files", "--", *SOURCES], cwd=ROOT, text=True).split()
    count = 0
    for name in tracked:
        if paths and not any(name == path or name.startswith(path.rstrip("/") + "/") for path in paths):
            continue
        for line, sentence, cure in sorted(found for text in texts(ROOT / name) for found in findings(text)):
            print(f"{name}:{line}: {sentence}\n    {cure}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
