"""A tokenizer's report is found again for the same files and code, and for nothing else."""

import shutil
from pathlib import Path

import pytest

from services.tokenization.report_cache import CacheEntry


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def model(tmp_path: Path, demo_dir: Path) -> Path:
    return shutil.copytree(demo_dir, tmp_path / "model")


def read(model: Path, env: dict[str, str], code: bytes = b"code") -> bytes | None:
    entry = CacheEntry.of(str(model), code, env)
    assert entry is not None
    return entry.read()


def write(model: Path, env: dict[str, str], report: bytes = b"report") -> None:
    entry = CacheEntry.of(str(model), b"code", env)
    assert entry is not None
    entry.write(report)


def test_same_files_have_the_same_report(model: Path, env: dict[str, str], tmp_path: Path) -> None:
    assert read(model, env) is None
    write(model, env)
    assert read(model, env) == b"report"
    assert read(shutil.copytree(model, tmp_path / "copy"), env) == b"report"
    (model / "model.safetensors").write_bytes(b"weights")
    assert read(model, env) == b"report"


def test_any_change_of_files_or_code_misses(model: Path, env: dict[str, str]) -> None:
    write(model, env)
    assert read(model, env, code=b"other") is None
    beside = ("special_tokens_map.json", "additional_chat_templates/a.jinja")
    for name in ("tokenizer.json", "tokenizer_config.json", *beside):
        path = model / name
        old = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((old or b"") + b" ")
        assert read(model, env) is None, name
        path.unlink() if old is None else path.write_bytes(old)
    assert read(model, env) == b"report"
