"""`turnwire check`: what is wrong is the last line, and the status."""

import json
import logging
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import TurnwireError
from services.cli.main import main
from services.preprocessor.model import ModelSetup
from services.runtime.config import PreprocessorConfig
from services.tokenization.tokenizer_files import load_backend
from tests.kit.described_model import DESCRIPTION, describe_model

WRONG: tuple[Any, ...] = (None, 5, -1, 0.5, True, "x", [], {}, [1], {"a": 1}, [{}])
KEYS = {
    "config.json": (
        "text_config",
        "max_position_embeddings",
        "eos_token_id",
        "model_type",
        "vocab_size",
    ),
    "generation_config.json": ("eos_token_id", "temperature", "do_sample", "top_k"),
    "tokenizer.json": ("added_tokens", "model", "decoder", "pre_tokenizer", "version"),
    "tokenizer_config.json": (
        "response_template",
        "chat_template",
        "eos_token",
        "model_max_length",
        "tokenizer_class",
    ),
}
"""The keys of a model's files that its readers use."""


def test_servable_model_passes(demo_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(demo_dir), "--served-model-name", "acme/coder"]) == 0
    assert capsys.readouterr().out == "acme/coder: qwen3_coder, 262,144 tokens\n"


def test_problem_of_a_model_is_reported(
    demo_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--model", str(path)])
        assert ended.value.code == 2
        return capsys.readouterr().err.removeprefix("turnwire check: Invalid value for --model: ")

    assert refused(tmp_path / "nowhere") == f"there is no directory {tmp_path / 'nowhere'}\n"
    model = Path(shutil.copytree(demo_dir, tmp_path / "model"))
    (model / "chat_template.jinja").unlink()
    assert main(["check", "--model", str(model)]) == 1
    assert "no chat template" in capsys.readouterr().err
    (model / "config.json").unlink()
    assert refused(model) == f"{model} has no config.json\n"


def test_model_missing_on_the_hub_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("services.cli.up.check.find_file", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--model", "org/nothing"])
    assert ended.value.code == 2
    assert "the hub has no such model or is out of reach" in capsys.readouterr().err


def test_wrong_settings_of_any_stage_are_reported(
    demo_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNWIRE_WORKER_SLOTS", "many")
    monkeypatch.setenv("TURNWIRE_PORT", "x")
    with pytest.raises(SystemExit) as ended:
        main(["check", "--model", str(demo_dir)])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("Invalid value for ")[2].split(":")[0] for line in lines] == [
        *("TURNWIRE_PORT", "TURNWIRE_WORKER_SLOTS")
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "there is no file "),
        ("{", "response_template is not JSON: "),
        ('{"fields": {}, "start_anchor": "<a>"}', "response_template: fields is empty"),
        (json.dumps(DESCRIPTION | {"version": 2}), "response_template: it is invalid: "),
    ],
)
def test_description_that_cannot_be_followed_is_reported(
    demo_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    problem: str,
) -> None:
    file = tmp_path / "own.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--model", str(demo_dir), "--response-template", str(file)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turnwire check: Invalid value for --response-template: ")
    assert problem in line


def damage(model: Path, chance: random.Random) -> str:
    """Damages one file of a model that describes its output; returns what was done."""
    name = chance.choice(("chat_template.jinja", *KEYS))
    file = model / name
    content = file.read_bytes()
    if name in KEYS and chance.random() < 0.6:
        key, value = chance.choice(KEYS[name]), chance.choice(WRONG)
        file.write_text(json.dumps({**json.loads(content), key: value}))
        return f"{name}: {key} is {value!r}"
    texts = (
        b"",
        b"[]",
        b"5",
        b"null",
        b"{}",
        b"{% if",
        b"\xff\xfe",
        content[: chance.randrange(len(content))],
        None,
    )
    text = chance.choice(texts)
    file.unlink()
    if text is not None:
        file.write_bytes(text)
    return f"{name}: {'missing' if text is None else text[:20]!r}"


def loads(model: Path) -> bool:
    """Whether preprocessor and parser can load a model."""
    try:
        ModelSetup.load(PreprocessorConfig(model=str(model)))
        load_backend(str(model), trust_remote_code=False)
    except (TurnwireError, ValueError, OSError):
        return False
    return True


@pytest.fixture
def muted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's warnings go nowhere: its handler has the stderr of the test that imported it,
    which is closed."""
    import transformers  # noqa: F401, without which each model would need a process

    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [logging.NullHandler()])


def try_damaged_models(path: Path, capsys: pytest.CaptureFixture[str], seeds: range) -> None:
    """`check` and the stages agree about each, and `check` reports a problem in one line."""
    whole, refused = describe_model(path / "whole"), 0
    for seed in seeds:
        model = shutil.copytree(whole, path / f"damaged {seed}")
        done = damage(model, random.Random(seed))
        try:
            status = main(["check", "--model", str(model)])
        except SystemExit:  # a file that every model has is missing
            status = 1
        assert status == (0 if loads(model) else 1), (seed, done)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == status, (seed, done, lines)
        assert all(
            re.match(r"turnwire check: (Invalid value for --)?model: ", line) for line in lines
        ), (
            seed,
            done,
            lines,
        )
        refused += status
    assert refused > len(seeds) // 3


@pytest.mark.usefixtures("muted")
def test_problem_of_a_damaged_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try_damaged_models(tmp_path, capsys, range(8))


@pytest.mark.slow
@pytest.mark.usefixtures("muted")
def test_problem_of_many_damaged_models_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try_damaged_models(tmp_path, capsys, range(100, 220))
