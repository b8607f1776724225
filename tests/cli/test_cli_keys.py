"""Keys of a file: made once, printed once, listed without secrets, and removed."""

import hashlib
import stat
from pathlib import Path

import pytest

from services.cli.main import main
from services.frontend.http.keys import Limits

pytestmark = pytest.mark.usefixtures("nothing_is_masked")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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


def test_invalid_option_and_other_limits_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    made(capsys, "ci", "rpm=60", "--file", str(file))
    before = file.read_text()
    for argv, error in (
        (("ci",), f"{file}: the lines of ci have different limits"),
        (("ops", "rps=1"), "'rps=1' is not an option of a key"),
        (("ops", "rpm=0"), "rpm=0: a whole number from 1"),
    ):
        status, out, err = made(capsys, *argv, "--file", str(file))
        assert (status, out) == (2, "")
        assert err.startswith(f"turnwire key: {error}")
    assert file.read_text() == before


def test_key_that_has_expired_already_is_made_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for date, expired in (("2020-01-31", True), ("2999-01-31", False)):
        status, _, err = made(capsys, "ci", f"expires={date}")
        assert (status, "it has expired already" in err) == (0, expired)


def test_keys_of_a_file_are_listed_without_secrets_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    keys = [
        made(capsys, name, *options, "--file", str(file))[1]
        for name, *options in (("ci", "rpm=60"), ("ci", "rpm=60"), ("old", "expires=2020-01-31"))
    ]
    file.write_text(f"# of the team\n{file.read_text()}")
    file.chmod(0o640)
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]

    status, listed, err = made(capsys, "list", "--file", str(file))
    assert (status, err) == (0, "")
    assert listed.splitlines() == [
        f"ci   {hashes[0][:8]}  rpm=60",
        f"ci   {hashes[1][:8]}  rpm=60",
        f"old  {hashes[2][:8]}  expires=2020-01-31 (has expired)",
    ]
    assert made(capsys, "remove", hashes[1][:8], "old", "--file", str(file))[0] == 0
    assert file.read_text() == f"# of the team\nci:{hashes[0]} rpm=60\n"
    assert mode(file) == 0o640
    assert "refuse every request" in made(capsys, "remove", "ci", "--file", str(file))[2]
    assert file.read_text() == "# of the team\n"
    assert made(capsys, "list", "--file", str(file)) == (0, "", f"{file} has no keys\n")


def test_wrong_uses_of_list_and_remove_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    made(capsys, "ci", "--file", str(file))
    before = file.read_text()
    for argv, status, error in (
        (("list",), 2, "`turnwire key list` needs the key file: --file FILE"),
        (("list", "ci", "--file", str(file)), 2, "takes only --file, not 'ci'"),
        (("remove", "--file", str(file)), 2, "name the keys to remove"),
        (("remove", "ops", "--file", str(file)), 1, f"{file} has no key ops; it has: ci"),
        (("remove", "c", "--file", str(file)), 1, "has no key c;"),
    ):
        found, out, err = made(capsys, *argv)
        assert (found, out) == (status, "")
        assert error in err
    assert file.read_text() == before
    file.write_text("ci:wrong\n")
    status, _, err = made(capsys, "list", "--file", str(file))
    assert (status, f"{file}:1: not a key; write" in err) == (2, True)
