"""The experiment on varying prefixes."""

import asyncio
import json
from pathlib import Path

import pytest

from bench import prefixes
from tests.kit.frontend import MODEL, FakeGateway, serving

VARIANTS = prefixes.variants("m", 2000, 7)


def common(one: str, other: str) -> float:
    """Share of the first that both begin with."""
    same = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return same / len(one)


def in_order(body: prefixes.Body) -> str:
    return json.dumps([body["system"], body["messages"]])


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("header stable", 0.9),
        ("header varying", 0.0),
        ("thinking kept", 0.95),
        ("thinking mutated", 0.7),
    ],
)
def test_what_two_requests_share(name: str, share: float) -> None:
    one, other = in_order(VARIANTS[name](1)), in_order(VARIANTS[name](2))
    assert one != other
    assert share <= common(one, other) < share + 0.1


def test_mutated_thought_differs_from_its_first_words_on_and_nothing_before_it_does() -> None:
    one, other = (VARIANTS["thinking mutated"](number) for number in (1, 2))
    before, after = ([body["system"], body["messages"][0]] for body in (one, other))
    assert before == after
    thoughts = [body["messages"][1]["content"][0]["thinking"] for body in (one, other)]
    assert common(*thoughts) < 0.01
    assert len(thoughts[0]) > prefixes.THINKING_TOKENS * 4
    assert one["messages"][1]["content"][1:] == other["messages"][1]["content"][1:]
    kept = [VARIANTS["thinking kept"](number)["messages"][1] for number in (1, 2)]
    assert kept[0] == kept[1]


def test_variants_share_nothing_but_the_header() -> None:
    bodies = [in_order(variant(1)) for variant in VARIANTS.values()]
    assert all(common(a, b) < 0.05 for a in bodies for b in bodies if a is not b)


def test_headers_differ_from_request_to_request() -> None:
    lines = {VARIANTS["header varying"](number)["system"][0]["text"] for number in range(9)}
    assert len(lines) == 9
    assert len({VARIANTS["header stable"](number)["system"][0]["text"] for number in range(9)}) == 1


async def test_it_runs_against_any_server(tmp_path: Path) -> None:
    async with serving(FakeGateway()) as served:
        out = tmp_path / "out.json"
        arguments = [
            f"--url={served.url}",
            f"--model={MODEL}",
            "--requests=2",
            "--tokens=500",
            f"--out={out}",
        ]
        assert await asyncio.to_thread(prefixes.main, arguments) == 0
        assert len(served.gateway.turns) == 4 * 3
    result = json.loads(out.read_text())
    assert {figure["variant"] for figure in result["figures"]} == set(VARIANTS)
    assert all(
        figure["prompt_tokens"] == 656 and figure["cached_tokens"] == 600
        for figure in result["figures"]
    )
    assert set(result["ratios"]) == set(prefixes.RATIOS)


async def test_a_refusal_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGateway()) as served:
        arguments = [f"--url={served.url}", "--model=nobody", f"--out={tmp_path / 'out'}"]
        assert await asyncio.to_thread(prefixes.main, arguments) == 1
    assert "404" in capsys.readouterr().err
