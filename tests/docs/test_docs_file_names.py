"""Looks up the Python files that pages name, and the types that the architecture names with their file.

A name is the end of one path: of all paths in the folders that its line names, of those under
`services` and `schemas`, or of all in the repository.
"""

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.docs.reader import PAGES, ROOT

ARCHITECTURE = ROOT / "docs/architecture.md"
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NEW = re.compile(r"^`\S+`:$", re.MULTILINE)
"""A file that the reader writes: its name, and then its code."""
_CODE = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"(?!.*\b[A-Z]+\b)[\w./-]+\.py")
"""The path of a module, or its end; words in capitals are placeholders."""
_TYPE = re.compile(r"`([A-Z]\w+)`(?: \(| in | \| )`(\S+\.py)`")
"""A type and its file: in brackets, after "in", or in the next cell of a table."""
_OTHERS = {
    "_event_manager.py",
    "conversation_params.py",
    "executor/result.py",
    "executor/utils.py",
    "iteration_stats.py",
    "kv_connector/v1/offloading/events.py",
    "sampling_params.py",
    "scheduler_v2.py",
    "serve/openai_protocol.py",
    "serve/postprocess_handlers.py",
    "thinking_budget.py",
    "vllm/v1/core/kv_cache_coordinator.py",
    "vllm/v1/kv_offload/cpu/spec.py",
}
"""Files of TensorRT-LLM and vLLM."""


@pytest.fixture(scope="module")
def files() -> list[str]:
    """The Python files of the repository, with those that are not committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of the repository")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def paragraphs(text: str) -> Iterator[str]:
    """Rows of tables, items of lists, and paragraphs."""
    prose = _NEW.sub("", _BLOCK.sub("", text))
    yield from re.split(r"\n(?=\n|\||\s*- |\s*\d+\. )", prose)


def ends_with(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name}")


def names_one(name: str, code: list[str], files: list[str]) -> bool:
    """Whether a name is a path, or the end of one path. `code`: all that its paragraph names."""
    matches = [path for path in files if ends_with(path, name)]
    of_services = [path for path in matches if path.startswith(("services/", "schemas/"))]
    if name in matches or 1 in (len(of_services), len(matches)):
        return True
    places = [word for word in code if "/" in word]
    folders = {word.rstrip("/") for word in places}
    folders |= {
        path.rpartition("/")[0] for path in files if any(ends_with(path, word) for word in places)
    }
    near = [
        path
        for path in matches
        if any(ends_with(path.rpartition("/")[0], folder) for folder in folders)
    ]
    return len(near) == 1


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str, files: list[str]) -> None:
    missing: list[str] = []
    for paragraph in paragraphs((ROOT / page).read_text()):
        code = [word for span in _CODE.findall(paragraph) for word in span.split()]
        names = {word for word in code if _NAME.fullmatch(word)} - _OTHERS
        missing += [name for name in names if not names_one(name, code, files)]
    assert not missing


def test_every_type_of_the_architecture_is_in_its_file(files: list[str]) -> None:
    missing: list[str] = []
    for name, file in _TYPE.findall(ARCHITECTURE.read_text()):
        texts = [(ROOT / path).read_text() for path in files if ends_with(path, file)]
        if not any(re.search(rf"^class {name}\b", text, re.MULTILINE) for text in texts):
            missing.append(f"{name}: {file}")
    assert not missing


def test_architecture_has_ten_types_of_each_stage() -> None:
    _, types = ARCHITECTURE.read_text().split("## The forty types\n")
    tables = types.split("\n## ")[0].split("\n### ")[1:]
    counts = {table.partition("\n")[0]: len(_TYPE.findall(table)) for table in tables}
    assert counts == dict.fromkeys(("Frontend", "Preprocessor", "Worker", "Parser"), 10)
