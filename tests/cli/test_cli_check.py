"""`turnwire check`: what is wrong is the last line, and the status."""

import shutil
from pathlib import Path

import pytest

from services.cli.main import main


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


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_problem_of_a_damaged_file_is_one_line(
    file: str, text: bytes, demo_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(demo_dir, tmp_path / "model"))
    (model / file).write_bytes(text)
    assert main(["check", "--model", str(model)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turnwire check: model: ")


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
