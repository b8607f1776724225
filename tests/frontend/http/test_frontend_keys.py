"""The lines of a file of API keys: their options, their defects."""

import hashlib
from datetime import UTC, datetime

import pytest

from schemas.control import ModelCard
from services.frontend.http.keys import Key, Limits, parse_keys
from tests.kit.every import for_rows

DIGEST = hashlib.sha256(b"alpha").hexdigest()
NONE = Limits()


def only(text: str, defaults: Limits = NONE) -> Key:
    (key,) = parse_keys(text, "keys", defaults)
    return key


def test_line_may_have_a_name_and_options() -> None:
    assert only(f"team-a:{DIGEST}") == Key("team-a", bytes.fromhex(DIGEST))
    assert only(f"  {DIGEST.upper()}  ").name == DIGEST[:8]
    key = only(
        f"ci:{DIGEST}  concurrency=4 rpm=60\ttpm=90000 models=small-*,coder expires=2027-01-31 priority=-3"
    )
    assert key.limits == Limits(4, 60, 90000)
    assert key.models == ("small-*", "coder")
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    assert key.priority == -3
    assert not key.operator
    assert only(f"{DIGEST} operator=yes").operator
    moment = datetime(2027, 1, 31, 18, tzinfo=UTC).timestamp()
    for text in ("2027-01-31T18:00", "2027-01-31T20:00+02:00"):
        assert only(f"{DIGEST} expires={text}").expires == moment, text
    defaults = Limits(8, 100, 1000)
    assert only(DIGEST, defaults).limits == defaults
    assert only(f"{DIGEST} rpm=7 tpm=none", defaults).limits == Limits(8, 7, None)


@for_rows(
    [
        ("coder", [True, False, False]),
        ("coder:*", [False, True, True]),
        ("sql", [False, True, False]),
        ("alias:docs", [False, False, True]),
        ("coder*", [True, True, True]),
    ]
)
def test_right_to_a_model_is_none_to_its_adapters(models: str, allowed: list[bool]) -> None:
    cards = [
        ModelCard("coder", aliases=["alias"]),
        *(
            ModelCard("coder", aliases=[name, f"alias:{name}"], adapter=name)
            for name in ("sql", "docs")
        ),
    ]
    key = only(f"{DIGEST} models={models}")
    assert [key.allows(card) for card in cards] == allowed


OPTIONS = "the options are concurrency, rpm, tpm, models, expires, priority, operator"


@for_rows(
    [
        ("n:" + "0" * 63, "not a key"),
        (f"ci:{DIGEST} rps=1", f"'rps=1' is not an option of a key; {OPTIONS}"),
        (f"ci:{DIGEST} rpm=0", "rpm=0: a whole number from 1, or none"),
        (f"ci:{DIGEST} expires=soon", "expires=soon: a date as 2027-01-31"),
        (f"ci:{DIGEST} priority=high", "priority=high: a whole number"),
        (f"ci:{DIGEST} operator=no", "operator=no: only yes"),
    ]
)
def test_invalid_line_is_named(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^keys:2: ") as caught:
        parse_keys(f"# keys\n{line}\n", "keys", NONE)
    assert reason in str(caught.value)
