"""A tokenizer's report is found again for the same files and code, and for nothing else."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from services.tokenization import tokenizer_files
from services.tokenization.report_cache import KEPT, CacheEntry
from services.tokenization.tokenizer_files import load_tokenizer


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
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "additional_chat_templates/a.jinja",
    ):
        path = model / name
        old = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((old or b"") + b" ")
        assert read(model, env) is None, name
        path.unlink() if old is None else path.write_bytes(old)
    assert read(model, env) == b"report"


def test_hub_id_has_no_entry(env: dict[str, str]) -> None:
    assert CacheEntry.of("org/model", b"code", env) is None


def test_least_recently_used_reports_are_removed(
    model: Path, env: dict[str, str], tmp_path: Path
) -> None:
    for number in range(KEPT + 2):
        (model / "config.json").write_text(str(number))
        write(model, env)
        for age, path in enumerate(
            sorted((tmp_path / "cache").rglob("*.json"), key=os.path.getmtime, reverse=True)
        ):
            os.utime(path, (1e9 - age, 1e9 - age))
    assert read(model, env) == b"report"
    (model / "config.json").write_text("0")
    assert read(model, env) is None
    assert len(list((tmp_path / "cache").rglob("*.json"))) == KEPT


def test_unwritable_folder_is_ignored(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    write(model, env)
    assert read(model, env) is None


def test_second_start_needs_no_process(
    model: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    first = load_tokenizer(str(model))
    monkeypatch.setattr(
        tokenizer_files, "load_in_child", lambda *_, **__: pytest.fail("a process was started")
    )
    second = load_tokenizer(str(model))
    assert isinstance(first, tokenizer_files.FileTokenizer)
    assert isinstance(second, tokenizer_files.FileTokenizer)
    assert second.backend_tokenizer.to_str() == first.backend_tokenizer.to_str()
    assert second.special_tokens_map == first.special_tokens_map
    assert (second.chat_template, second.eos_token_id) == (first.chat_template, first.eos_token_id)
