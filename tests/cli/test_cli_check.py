"""`turnwire check`: what is wrong is the last line, and the status."""

import shutil
from pathlib import Path

import pytest

from services.cli.main import main


def test_model_is_checked(
    demo_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--model", str(path)])
        assert ended.value.code == 2
        return capsys.readouterr().err.removeprefix("turnwire check: Invalid value for --model: ")

    assert main(["check", "--model", str(demo_dir), "--served-model-name", "acme/coder"]) == 0
    assert capsys.readouterr().out == "acme/coder: qwen3_coder, 262,144 tokens\n"
    assert refused(tmp_path / "nowhere") == f"there is no directory {tmp_path / 'nowhere'}\n"
    model = Path(shutil.copytree(demo_dir, tmp_path / "model"))
    (model / "tokenizer.json").write_bytes(b"{}")
    assert main(["check", "--model", str(model)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turnwire check: model: ")
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
