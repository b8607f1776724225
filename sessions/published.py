"""Finds published chat templates in packages. None is stored here.

`trl` is installed with the tests. `python -m sessions.published DIRECTORY` extracts more from
two other packages on PyPI, without installing them: llama.cpp's folder of templates (MIT), which
the source of `llama-cpp-python` has, and the model list of `xinference` (Apache-2.0). Tests read
that folder if the environment variable CHAT_TEMPLATES names it.
"""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

_SOURCE, _WHEEL = "llama-cpp-python==0.3.36", "xinference==4.1.0"
_IN_SOURCE = "/vendor/llama.cpp/models/templates/"
_IN_WHEEL = "xinference/model/llm/models/"
_NOT_RENDERED = {
    # needs a description of each parameter
    "llamacpp_cohereforai_c4ai_command_r_plus_tool_use",
    # needs a variable `functions`
    "llamacpp_fireworks_ai_llama_3_firefunction_v2",
    # writes a generator as JSON, which Jinja cannot
    "llamacpp_llama_cpp_deepseek_r1",
}
"""Templates that cannot render an agent's conversation."""


def published() -> dict[str, Path]:
    """Returns files by name: from `trl`, if it is installed, then from the folder
    CHAT_TEMPLATES."""
    folder = os.environ.get("CHAT_TEMPLATES")
    return {
        **of_trl(),
        **({file.stem: file for file in sorted(Path(folder).glob("*.jinja"))} if folder else {}),
    }


def of_trl() -> dict[str, Path]:
    """Returns files of the `trl` package, which is data without its dependencies; none if it is not
    installed."""
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return {
        file.stem: file
        for file in sorted(folder.glob("*.jinja"))
        if not file.stem.endswith("_training")
    }


def download(directory: Path) -> int:
    """Writes each template that `trl` lacks into the directory, once. Returns their number."""
    known = {_digest(file.read_text(encoding="utf-8")) for file in of_trl().values()}
    directory.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in [*_of_source(Path(scratch)), *_of_wheel(Path(scratch))]:
            if _digest(text) not in known and name not in _NOT_RENDERED:
                known.add(_digest(text))
                (directory / f"{name}.jinja").write_text(text, encoding="utf-8")
                count += 1
    return count


def _of_source(scratch: Path) -> Iterator[tuple[str, str]]:
    _pip_download(_SOURCE, scratch, "--no-binary", "llama-cpp-python")
    with tarfile.open(next(scratch.glob("llama_cpp_python*.tar.gz"))) as archive:
        for member in archive:
            if _IN_SOURCE in member.name and member.name.endswith(".jinja"):
                data = archive.extractfile(member)
                assert data is not None
                yield _file_name("llamacpp", PurePosixPath(member.name).stem), data.read().decode()


def _of_wheel(scratch: Path) -> Iterator[tuple[str, str]]:
    _pip_download(_WHEEL, scratch, "--only-binary", ":all:")
    with zipfile.ZipFile(next(scratch.glob("xinference*.whl"))) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(_IN_WHEEL) and name.endswith(".json"):
                for model in json.loads(archive.read(name)):
                    text = model.get("chat_template") or ""
                    if "tools" in text:  # agents need them; a text may also be another model's name
                        yield _file_name("xinference", model["model_name"]), text


def _pip_download(package: str, directory: Path, *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", *options, "--dest", str(directory), package]
    subprocess.run(command, check=True)


def _file_name(source: str, model: str) -> str:
    return f"{source}_" + re.sub(r"\W+", "_", model).lower()


def _digest(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").strip().encode()).hexdigest()


def main(argv: Sequence[str]) -> int:
    """Downloads templates into the directory that is named."""
    if len(argv) != 1:
        print("usage: python -m sessions.published DIRECTORY", file=sys.stderr)
        return 2
    print(f"{download(Path(argv[0]))} chat templates besides those of trl")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
