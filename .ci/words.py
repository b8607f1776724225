"""Finds sentences that readers stop at, in docstrings, comments and pages: `python .ci/words.py
[PATH ...]`.

Prints place, sentence and cure, and ends with status 1 if there are any. `RULES` has exceptions for
legitimate uses.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (
    "schemas",
    "services",
    "turnwire_tools",
    "sessions",
    "simulation",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
COMPARED = (
    "longer|more|other|different|better|worse|less|fewer|later|earlier|greater|larger|smaller|"
    "faster|slower"
)
PLACES = r"balancers?|firewalls?|frontends?|gateways?|NAT|prox(?:y|ies)|routers?|servers?"
LATE = "".join(rf"(?<!\b{word} )" for word in ("fall", "falls", "lag", "lags", "left", "far"))
RULES = [
    (re.compile(pattern, re.IGNORECASE), cure)
    for pattern, cure in (
        (
            r"\ADOCSTRING (?:of|their|those|by(?! default)|the same)\b",
            "begin with the noun or the verb",
        ),
        (
            r"\ADOCSTRING see ·+\.?\s*\Z",
            "a sentence that states the difference, or @override without a docstring",
        ),
        (
            rf"(?<!there )\b(?:is|are|was|were) no (?!(?:{COMPARED})\b)\w+",
            "is not a …, or has no …",
        ),
        (rf"{LATE}\bbehind\b(?![;,.]| (?:\w+ ){{0,3}}(?:{PLACES})\b)", "after, following"),
        (r"\bgiven\b(?! (?:\w+ ){0,2}(?:up|back)\b)", "set, passed, sent, configured"),
        (r"\bof which it\b", "two sentences, subject first"),
        (r"\bwhose\b", "with, that has, or a second sentence"),
        (r"\banew\b", "again"),
        (r"\bwhoever\b", "the process or the person"),
        (r"\bsuch as are\b", "that are"),
        (r"\belse than\b", "other than"),
        (r"\bso many\b", "the number"),
    )
]
CODE = re.compile(r"```.*?```|``.+?``|`[^`]*`", re.DOTALL)
END = re.compile(r"[.:|](?= |\Z)")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that people read, each with the line before it: a page, or docstrings and
    comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 0, source
        return
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno - 1, f"DOCSTRING {node.value.value}"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0] - 1, token.string.lstrip("# ")


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields line, sentence and cure of each place."""
    for before, text in texts(path):
        words = re.sub(
            r"\s",
            " ",
            CODE.sub(lambda code: re.sub(r"\S", "·", code[0]), text).replace("\n\n", "| "),
        )
        for pattern, cure in RULES:
            for found in pattern.finditer(words):
                ends = [0, *(end.end() for end in END.finditer(words)), len(words)]
                start = max(end for end in ends if end <= found.start())
                stop = min(end for end in ends if end >= found.end())
                sentence = " ".join(text[start:stop].removeprefix("DOCSTRING ").split())
                yield before + 1 + text.count("\n", 0, found.start()), sentence, cure


def main(paths: list[str]) -> int:
    """Checks the files of the repository, or only those under `paths`; returns the exit status."""
    names = subprocess.check_output(
        ["git", "ls-files", "--", *SOURCES], cwd=ROOT, text=True
    ).split()
    chosen = [
        name
        for name in names
        if name.endswith((".py", ".md")) and name.startswith(tuple(paths) or "")
    ]
    found = [(name, *finding) for name in chosen for finding in sorted(findings(ROOT / name))]
    for name, line, sentence, cure in found:
        print(f"{name}:{line}: {sentence}\n    write: {cure}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
