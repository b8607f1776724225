"""What requests have in common, and that they are the same everywhere."""

import hashlib
import json
from typing import Any

import pytest

from bench.apis import APIS
from bench.prompts import KINDS, Kind, Size, make_body, story_prompt

API = APIS["messages"]


def bodies(size: Size, kind: Kind, seed: int = 0) -> list[bytes]:
    make = make_body(API, "m", size=size, kind=kind, play="text n=16", seed=seed)
    return [make(0), make(1)]


def common(first: str, second: str) -> int:
    return next(
        at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_the_directive_ends_the_last_user_message(size: Size, kind: Kind) -> None:
    for body in bodies(size, kind):
        request: dict[str, Any] = json.loads(body)
        assert request["messages"][-1]["content"][-1]["text"].endswith("[[play text n=16]]")
        assert request["stream"] is True
        assert b"@@" not in body


def test_the_large_prompt_has_an_agents_shape() -> None:
    request = json.loads(bodies("large", "tail")[0])
    assert request["system"][0]["text"].startswith("x-anthropic-billing-header: cc_version=")
    assert "cache_control" not in request["system"][0]
    assert len(request["system"][2]["text"]) == 177_000
    assert len({tool["name"] for tool in request["tools"]}) == 20
    assert all(tool["input_schema"]["additionalProperties"] is False for tool in request["tools"])


def parts(body: bytes) -> tuple[str, str, str]:
    request = json.loads(body)
    return tuple(json.dumps(request[key]) for key in ("tools", "system", "messages"))  # type: ignore[return-value]


def test_what_two_requests_have_in_common() -> None:
    same, again = bodies("large", "same")
    assert same == again

    for first, second in (
        bodies("large", "tail"),
        (bodies("large", "tail")[0], bodies("large", "tail", seed=7)[0]),
    ):
        assert parts(first)[:2] == parts(second)[:2]
        assert parts(first)[2] != parts(second)[2]

    (tools, system, _), (other_tools, other_system, _) = map(parts, bodies("large", "head"))
    assert common(tools, other_tools) < 100
    assert json.loads(system)[2]["text"][:17] != json.loads(other_system)[2]["text"][:17]
    assert tools[200:] == other_tools[200:]

    (tools, system, _), (other_tools, other_system, _) = map(parts, bodies("large", "fresh"))
    words = set(json.loads(system)[2]["text"].split(". "))
    others = set(json.loads(other_system)[2]["text"].split(". "))
    assert len(words & others) < len(words) / 20


def test_the_same_bytes_on_every_machine() -> None:
    found = hashlib.sha256(b"".join(b"".join(bodies("large", kind)) for kind in KINDS)).hexdigest()
    assert found == "cd63bffdfdb2f7a8326517b0143671a7d47715ee95bd9385d616e4dad2fb3965"


def test_a_story_declares_tools() -> None:
    prompt = story_prompt("text n=5")
    assert [tool.name for tool in prompt.tools][-1] == "get_weather"
    assert prompt.user.endswith("[[play text n=5]]")
