"""One models document for three families of clients; names with slashes; pages."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession
from anthropic.types import ModelInfo
from frontend_fakes import MODEL, FakeGateway, serving

from schemas.control import ModelCard
from schemas.errors import Invalid
from services.frontend.dialects.models import codex_entry, entry, listing

CARDS = [
    ModelCard("acme/one", aliases=["claude-one", "acme/one"], max_model_len=1000, created=1700000000, reasoning=True),
    ModelCard("two", features=["guided"]),
]
CODEX_REQUIRED = {
    "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api", "priority",
    "support_verbosity", "truncation_policy", "experimental_supported_tools", "base_instructions",
}  # fmt: skip


def page(*lifecycles: str, **query: str) -> dict[str, Any]:
    return listing(CARDS, query, lifecycles)


def ids(document: dict[str, Any]) -> list[str]:
    return [model["id"] for model in document["data"]]


def test_every_name_is_listed_once() -> None:
    document = page()
    assert ids(document) == ["acme/one", "claude-one", "two"]
    assert (document["first_id"], document["last_id"], document["has_more"]) == ("acme/one", "two", False)
    assert [model["slug"] for model in document["models"]] == ids(document)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_entries_fit_the_strict_types_of_both_sdks(card: ModelCard) -> None:
    made = entry(card, card.name)
    info = ModelInfo.model_validate(made, strict=False)
    assert info.lifecycle == "active"
    assert info.max_input_tokens == (card.max_model_len or None)
    assert info.capabilities is not None
    assert info.capabilities.thinking.supported is card.reasoning
    assert info.capabilities.structured_outputs.supported is ("guided" in card.features)
    assert (made["object"], made["owned_by"], made["created"]) == ("model", "turnwire", card.created)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_codex_entries_have_every_required_field(card: ModelCard) -> None:
    made = codex_entry(card, "name")
    assert made.keys() >= CODEX_REQUIRED
    assert made["shell_type"] in ("default", "local", "shell_command", "unified_exec", "disabled")
    assert made["truncation_policy"]["mode"] in ("bytes", "tokens")
    assert bool(made["supported_reasoning_levels"]) is card.reasoning
    assert made.get("context_window") == (card.max_model_len or None)


@pytest.mark.parametrize(
    ("query", "expected", "more"),
    [
        ({"limit": "2"}, ["acme/one", "claude-one"], True),
        ({"limit": "1", "after_id": "acme/one"}, ["claude-one"], True),
        ({"after_id": "claude-one"}, ["two"], False),
        ({"after_id": "two"}, [], False),
        ({"limit": "1", "before_id": "two"}, ["claude-one"], True),
        ({"before_id": "claude-one"}, ["acme/one"], False),
        ({"after_id": "nobody"}, ["acme/one", "claude-one", "two"], False),
    ],
)
def test_pages(query: dict[str, str], expected: list[str], more: bool) -> None:
    document = page(**query)
    assert ids(document) == expected
    assert document["has_more"] is more
    assert document["last_id"] == (expected[-1] if expected else None)


def test_lifecycles() -> None:
    assert ids(page("deprecated", "retired")) == []
    assert len(ids(page("retired", "active"))) == 3


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "1.5"])
def test_bad_limits(limit: str) -> None:
    with pytest.raises(Invalid, match="limit: Input should be"):
        page(limit=limit)


@pytest.mark.parametrize("spelled", ["acme/served-model", "acme%2Fserved-model", "acme%2fserved-model"])
async def test_a_slash_in_a_name_is_raw_or_escaped(spelled: str) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"GET /v1/models/{spelled} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 200")
    assert f'"id":"{MODEL}"' in answer


async def test_lifecycle_and_limit_over_http() -> None:
    async with serving(FakeGateway(cards=CARDS)) as served, ClientSession(served.url) as http:
        assert ids(await (await http.get("/v1/models?limit=1000")).json()) == ["acme/one", "claude-one", "two"]
        assert ids(await (await http.get("/v1/models?lifecycle[]=retired")).json()) == []
        assert (await http.get("/v1/models?limit=0")).status == 400


async def test_no_models_yet() -> None:
    async with serving(FakeGateway(cards=[])) as served, ClientSession(served.url) as http:
        document = await (await http.get("/v1/models")).json()
    assert document == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
        "models": [],
    }
