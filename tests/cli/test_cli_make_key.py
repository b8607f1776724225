"""`turnwire key`: a key that the frontend accepts, printed once."""

from pathlib import Path

import pytest

from services.cli.main import main
from services.frontend.http.keys import Limits, parse_keys


def made(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["key", *argv])
    out, err = capsys.readouterr()
    return status, out.strip(), err


def test_key_file_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from services.frontend.http.auth import find_key, load_keys

    path = tmp_path / "keys"
    _, first, _ = made(capsys, "ci", "--file", str(path), "rpm=60", "models=small-*,coder")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().rstrip("\n"))
    _, second, _ = made(capsys, "ops", "--file", str(path))
    known = load_keys(str(path), Limits())
    one, other = find_key(known, first), find_key(known, second)
    assert one is not None
    assert other is not None
    assert (one.name, one.models) == ("ci", ("small-*", "coder"))
    assert one.limits == Limits(requests_per_minute=60)
    assert other.name == "ops"
    assert first != second
    assert len(first) > 40
    assert first not in path.read_text()


def test_line_is_printed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    status, key, messages = made(capsys, "ci", "tpm=5")
    line = next(line for line in messages.splitlines() if line.startswith("for the key file:"))
    (parsed,) = parse_keys(line.removeprefix("for the key file:"), "the key", Limits())
    assert status == 0
    assert parsed.limits.tokens_per_minute == 5
    assert key not in messages


def test_invalid_option_and_other_limits_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    made(capsys, "ci", "rpm=60", "--file", str(file))
    before = file.read_text()
    for argv in (("ci",), ("a b",), ("ops", "rps=1"), ("ops", "rpm=0")):
        status, out, err = made(capsys, *argv, "--file", str(file))
        assert (status, out) == (2, "")
        assert "turnwire key: " in err
    assert file.read_text() == before
