"""What keys have used: the labels of metrics, and the sum over frontends."""

import asyncio

import msgspec
import pytest

from schemas.control import UsageNotice, UsageReported, UsageRequested, UsedTokens, decode_notice
from schemas.events import Usage
from services.frontend.turns import key_usage
from services.frontend.turns.key_usage import KeyCounts, KeyUsage, OtherFrontends


class Bus(OtherFrontends):
    """Passes a frontend's notices to all frontends, itself included, as the bus does."""

    def __init__(self, id: str, members: "dict[str, KeyUsage]") -> None:
        self.id = id
        self.members = members

    def living(self) -> list[str]:
        return [id for id in self.members if id != self.id]

    def publish_notice(self, notice: UsageNotice) -> None:
        sent = decode_notice(msgspec.json.encode(notice))
        assert isinstance(sent, UsageRequested | UsageReported)
        for member in self.members.values():
            asyncio.get_running_loop().call_soon(member.apply, sent)


class Silent(KeyUsage):
    """A frontend that hangs, or is of an older release."""

    def apply(self, notice: UsageNotice) -> None:
        pass


def frontends(*kinds: type[KeyUsage]) -> list[KeyUsage]:
    members: dict[str, KeyUsage] = {}
    for number, kind in enumerate(kinds):
        members[f"f{number}"] = kind(KeyCounts(0), Bus(f"f{number}", members))
    return list(members.values())


def samples(counts: KeyCounts, name: str) -> dict[tuple[str, str], float]:
    (family,) = (family for family in counts.collect() if family.name == name)
    return {
        (sample.labels["key"], sample.labels["model"]): sample.value for sample in family.samples
    }


async def test_a_holder_gets_the_sum_over_all_frontends_and_nobody_elses_numbers() -> None:
    first, second, third = frontends(KeyUsage, KeyUsage, KeyUsage)
    second.counts.since = 5.0
    for frontend in (first, third):
        frontend.counts.count("ci", "coder", Usage(10, 4, 3, 1))
    third.counts.count("ci", "small", Usage(1))
    third.counts.count("other-team", "coder", Usage(1000))

    for asked in (first, second, third):
        total = await asked.total("ci")
        assert total.models == {
            "coder": UsedTokens(2, Usage(20, 8, 6, 2)),
            "small": UsedTokens(1, Usage(1)),
        }
        assert (total.frontends, total.missing, total.since) == (3, set(), 5.0)
    assert (await first.total("nobody")).models == {}


async def test_a_silent_frontend_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_usage, "ANSWER_S", 0.01)
    asked, _, silent = frontends(KeyUsage, KeyUsage, Silent)
    silent.counts.count("ci", "coder", Usage(7))
    total = await asked.total("ci")
    assert (total.frontends, total.missing, total.models) == (2, {"f2"}, {})
    asked.apply(UsageReported("of-yesterday", "f2", 0.0, {"coder": UsedTokens(1)}))  # no effect


def test_metrics_show_as_many_names_as_they_may() -> None:
    counts = KeyCounts(2)
    for key in ("a", "b", "c", "d", "a"):
        counts.count(key, "m", Usage(10, 4, 3, 1))
    turns = samples(counts, "turnwire_key_turns")
    assert turns == {("a", "m"): 2, ("b", "m"): 1, ("other", "m"): 2}
    for name, value in (("prompt", 20), ("cached", 8), ("generation", 6), ("reasoning", 2)):
        assert samples(counts, f"turnwire_key_{name}_tokens")["a", "m"] == value


def test_metrics_show_no_names_by_default() -> None:
    counts = KeyCounts(0)
    counts.count("a", "m", Usage())
    assert samples(counts, "turnwire_key_turns") == {("other", "m"): 1}
    without_keys = KeyCounts(0)
    without_keys.count(None, "m", Usage())
    assert samples(without_keys, "turnwire_key_turns") == {("", "m"): 1}
