"""What keys have used: the labels of metrics, and the sum over frontends."""

import asyncio
from collections import Counter

import msgspec
import pytest

from schemas.events import Usage
from schemas.notices import (
    FrontendNotice,
    UsageNotice,
    UsageReported,
    UsageRequested,
    decode_notice,
)
from services.frontend.peers import NO_PEERS, Peers
from services.frontend.turns import key_usage
from services.frontend.turns.key_usage import KeyUsage


class Silent(KeyUsage):
    """A frontend that hangs, or is of an older release."""

    def apply(self, notice: UsageNotice) -> None:
        pass


class Bus(Peers):
    """Passes a frontend's notices to all frontends, itself included, as the bus does."""

    def __init__(self, id: str, members: dict[str, KeyUsage]) -> None:
        self.id = id
        self.members = members

    def living(self) -> list[str]:
        return [id for id in self.members if id != self.id]

    def publish(self, notice: FrontendNotice) -> None:
        sent = decode_notice(msgspec.json.encode(notice))
        assert isinstance(sent, UsageRequested | UsageReported)
        for member in self.members.values():
            asyncio.get_running_loop().call_soon(member.apply, sent)


def frontends(*kinds: type[KeyUsage]) -> list[KeyUsage]:
    members: dict[str, KeyUsage] = {}
    for number, kind in enumerate(kinds):
        id = f"f{number}"
        members[id] = kind(0, Bus(id, members))
    return list(members.values())


def samples(counts: KeyUsage, name: str) -> dict[tuple[str, str], float]:
    (family,) = (family for family in counts.collect() if family.name == name)
    return {
        (sample.labels["key"], sample.labels["model"]): sample.value for sample in family.samples
    }


async def used_by(frontend: KeyUsage, key: str) -> tuple[dict[str, dict[str, int]], int, bool]:
    """Its counts by model, the number of frontends, and whether these are all."""
    reports, complete = await frontend.read(key)
    total: dict[str, Counter[str]] = {}
    for report in reports:
        for model, counts in report.models.items():
            total.setdefault(model, Counter()).update(counts)
    found = {model: {k: v for k, v in counts.items() if v} for model, counts in total.items()}
    return found, len(reports), complete


async def test_a_holder_gets_the_sum_over_all_frontends_and_nobody_elses_numbers() -> None:
    first, second, third = frontends(KeyUsage, KeyUsage, KeyUsage)
    for frontend in (first, third):
        frontend.count("ci", "coder", Usage(prompt=10, cached=4, output=3, reasoning=1))
    third.count("ci", "small", Usage(prompt=1))
    third.count("other-team", "coder", Usage(prompt=1000))
    coder = {
        "turns": 2,
        "prompt_tokens": 20,
        "cached_tokens": 8,
        "output_tokens": 6,
        "reasoning_tokens": 2,
    }
    expected = {"coder": coder, "small": {"turns": 1, "prompt_tokens": 1}}
    for asked in (first, second, third):
        assert await used_by(asked, "ci") == (expected, 3, True)
    assert (await used_by(first, "nobody"))[0] == {}


async def test_all_holders_are_read_from_all_frontends() -> None:
    asked, other = frontends(KeyUsage, KeyUsage)
    asked.count("ci", "coder", Usage(prompt=1))
    other.count(None, "coder", Usage(prompt=2))
    reports, complete = await asked.read(None, every=True)
    prompts = {
        key: models["coder"]["prompt_tokens"]
        for report in reports
        for key, models in (report.keys or {}).items()
    }
    assert (prompts, complete) == ({"ci": 1, "": 2}, True)


async def test_frontend_of_an_older_release_has_no_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_usage, "ANSWER_S", 0.01)
    asked, _ = frontends(KeyUsage, Silent)
    reading = asyncio.ensure_future(asked.read(None, every=True))
    await asyncio.sleep(0)
    (id,) = asked._open
    asked.apply(UsageReported(id, "f1", 0.0))
    reports, complete = await reading
    assert (len(reports), complete) == (1, False)


async def test_a_silent_frontend_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_usage, "ANSWER_S", 0.01)
    asked, _, silent = frontends(KeyUsage, KeyUsage, Silent)
    silent.count("ci", "coder", Usage(prompt=7))
    assert await used_by(asked, "ci") == ({}, 2, False)
    asked.apply(UsageReported("of-yesterday", "f2", 0.0, {"coder": {"turns": 1}}))  # no effect


def test_metrics_show_as_many_names_as_they_may() -> None:
    counts = KeyUsage(2, NO_PEERS)
    for key in ("a", "b", "c", "d", "a"):
        counts.count(key, "m", Usage(prompt=10, cached=4, output=3, reasoning=1))
    turns = samples(counts, "turnwire_key_turns")
    assert turns == {("a", "m"): 2, ("b", "m"): 1, ("other", "m"): 2}
    for name, value in (("prompt", 20), ("cached", 8), ("generation", 6), ("reasoning", 2)):
        assert samples(counts, f"turnwire_key_{name}_tokens")["a", "m"] == value


def test_metrics_show_no_names_by_default() -> None:
    counts = KeyUsage(0, NO_PEERS)
    counts.count("a", "m", Usage())
    assert samples(counts, "turnwire_key_turns") == {("other", "m"): 1}
    without_keys = KeyUsage(0, NO_PEERS)
    without_keys.count(None, "m", Usage())
    assert samples(without_keys, "turnwire_key_turns") == {("", "m"): 1}
