"""The key file: its form, what it refuses, what a key may."""

import hashlib
from datetime import UTC, datetime

import pytest

from schemas.control import ModelCard
from services.frontend.http.keys import Key, Limits, parse_keys

DIGEST = hashlib.sha256(b"alpha").hexdigest()
OTHER = hashlib.sha256(b"beta").hexdigest()
NONE = Limits()


def only(text: str, defaults: Limits = NONE) -> Key:
    (key,) = parse_keys(text, "keys", defaults)
    return key


def test_line_needs_no_options() -> None:
    assert only(f"team-a:{DIGEST}") == Key("team-a", bytes.fromhex(DIGEST))
    assert only(f"  {DIGEST.upper()}  ").name == DIGEST[:8]


def test_every_option_is_parsed() -> None:
    key = only(
        f"ci:{DIGEST}  concurrency=4 rpm=60\ttpm=90000 models=small-*,coder expires=2027-01-31 priority=-3"
    )
    assert key.limits == Limits(4, 60, 90000)
    assert key.models == ("small-*", "coder")
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    assert key.priority == -3


def test_expiry_without_a_zone_is_in_utc() -> None:
    moment = datetime(2027, 1, 31, 18, tzinfo=UTC).timestamp()
    for text in ("2027-01-31T18:00", "2027-01-31T20:00+02:00"):
        assert only(f"{DIGEST} expires={text}").expires == moment


def test_line_overrides_defaults() -> None:
    defaults = Limits(8, 100, 1000)
    assert only(DIGEST, defaults).limits == defaults
    assert only(f"{DIGEST} rpm=7 tpm=none", defaults).limits == Limits(8, 7, None)


@pytest.mark.parametrize("line", ["name:alpha", "a b:" + "0" * 64, "n:" + "0" * 63])
def test_malformed_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"^keys:2: not a key"):
        parse_keys(f"# x\n{line}\n", "keys", NONE)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            "rps=1",
            "'rps=1' is no option of a key; there are concurrency, rpm, tpm, models, expires, priority",
        ),
        ("rpm=0", "rpm=0: a whole number from 1, or none"),
        ("expires=soon", "expires=soon: a date as 2027-01-31"),
        ("priority=high", "priority=high: a whole number"),
    ],
)
def test_invalid_option_is_refused_with_its_line(options: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^keys:2: ") as caught:
        parse_keys(f"# keys\nci:{DIGEST} {options}", "keys", NONE)
    assert reason in str(caught.value)


def test_keys_of_one_holder_have_equal_limits() -> None:
    assert (
        len(parse_keys(f"ci:{DIGEST} rpm=5\nci:{OTHER} rpm=5 expires=2027-01-31", "keys", NONE))
        == 2
    )
    with pytest.raises(ValueError, match="the lines of ci have different limits"):
        parse_keys(f"ci:{DIGEST} rpm=5\nci:{OTHER} rpm=6", "keys", NONE)


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        ("", True),
        ("acme/*", True),
        ("alias-?", True),
        ("coder", False),
    ],
)
def test_model_is_allowed_by_any_of_its_names(patterns: str, allowed: bool) -> None:
    card = ModelCard("acme/coder", aliases=["alias-1"])
    key = only(f"{DIGEST} models={patterns}" if patterns else DIGEST)
    assert key.allows(card) is allowed
