"""Tests the models document for three families of clients, names with slashes, and pages."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.control import THINKING_BUDGET, ModelCard
from services.frontend.apis.models.documents import entry, listing, names
from services.runtime.config import FrontendConfig
from tests.kit.bodies import messages, responses
from tests.kit.frontend import MODEL, FakeGateway, serving

CARDS = [
    ModelCard(
        "acme/one",
        aliases=["claude-one", "acme/one"],
        max_model_len=1000,
        max_output_tokens=100,
        created=1700000000,
        reasoning=True,
        switchable=True,
        efforts=["low", "high", "max"],
    ),
    ModelCard("two", features=["guided"]),
]
ALL = ["acme/one", "claude-one", "two"]


def page(*lifecycles: str, **query: str) -> dict[str, Any]:
    return listing(names(CARDS), query, lifecycles)


def ids(document: dict[str, Any]) -> list[str]:
    return [model["id"] for model in document["data"]]


def test_every_name_is_listed_once() -> None:
    document = page()
    assert ids(document) == ALL
    assert (document["first_id"], document["last_id"]) == ("acme/one", "two")
    assert not document["has_more"]
    assert [model["slug"] for model in document["models"]] == ids(document)


@pytest.fixture
def model_info() -> Any:
    from anthropic.types import ModelInfo

    return ModelInfo


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_entries_fit_the_strict_types_of_both_sdks(card: ModelCard, model_info: Any) -> None:
    made = entry(card, card.name)
    info = model_info.model_validate(made, strict=False)
    assert info.lifecycle == "active"
    assert info.max_input_tokens == (card.max_model_len or None)
    assert info.max_tokens == (card.max_output_tokens or None)
    effort = info.capabilities.effort
    assert info.capabilities.thinking.supported is card.reasoning
    assert effort.supported is bool(card.efforts)
    levels = ("low", "medium", "high", "max")
    assert [level for level in levels if getattr(effort, level).supported] == card.efforts
    assert info.capabilities.structured_outputs.supported is ("guided" in card.features)
    assert made["object"] == "model"
    assert made["owned_by"] == "turnwire"
    assert made["created"] == card.created


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_entries_fit_openais_strict_type_and_vllms_clients(card: ModelCard) -> None:
    from openai.types import Model

    made = entry(card, "alias")
    model = Model.model_validate(made, strict=True)
    assert (model.id, model.owned_by) == ("alias", "turnwire")
    assert (made["root"], made["parent"]) == (card.name, card.name)
    assert made["max_model_len"] == (card.max_model_len or None)
    assert made["permission"][0]["allow_sampling"] is True
    assert entry(card, card.name)["parent"] is None
    assert card.name in made["description"]


@pytest.mark.parametrize(
    ("query", "expected", "more"),
    [
        ({"limit": "2"}, ["acme/one", "claude-one"], True),
        ({"limit": "1", "after_id": "acme/one"}, ["claude-one"], True),
        ({"after_id": "two"}, [], False),
        ({"limit": "1", "before_id": "two"}, ["claude-one"], True),
        ({"after_id": "nobody"}, ALL, False),
    ],
)
def test_lists_have_pages(query: dict[str, str], expected: list[str], more: bool) -> None:
    document = page(**query)
    assert ids(document) == expected
    assert document["has_more"] is more
    assert document["last_id"] == (expected[-1] if expected else None)


@pytest.mark.parametrize(
    "spelled", ["acme/served-model", "acme%2Fserved-model", "acme%2fserved-model"]
)
async def test_slash_in_a_name_may_be_escaped(spelled: str) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            f"GET /v1/models/{spelled} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 200")
    assert f'"id":"{MODEL}"' in answer


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models?client_version=0.169.0", "/codex/models.json"]
)
async def test_unchanged_list_is_not_sent_again(path: str) -> None:
    gateway = FakeGateway(cards=CARDS)
    async with serving(gateway) as served, ClientSession(served.url) as http:
        first = await http.get(path)
        etag = first.headers["etag"]
        again = await http.get(path, headers={"if-none-match": f'"other", {etag}'})
        assert (again.status, await again.read(), again.headers["etag"]) == (304, b"", etag)
        gateway.cards = CARDS[:1]
        changed = await http.get(path, headers={"if-none-match": etag})
        assert changed.status == 200
        assert changed.headers["etag"] != etag


async def test_catalogue_has_one_etag_and_pages_have_their_own() -> None:
    async with serving(FakeGateway(cards=CARDS)) as served, ClientSession(served.url) as http:
        etags = [
            (await http.get(path)).headers["etag"]
            for path in ("/v1/models", "/codex/models.json", "/v1/models?limit=1")
        ]
        assert etags[0] == etags[1] != etags[2]
        whole, alone = [
            await (await http.get(path)).json() for path in ("/v1/models", "/codex/models.json")
        ]
        assert alone == {"models": whole["models"]}


async def test_answer_has_the_etag_of_the_catalogue() -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        etag = (await http.get("/codex/models.json")).headers["etag"]
        for stream in (True, False):
            answer = await http.post("/v1/responses", json=responses(stream=stream))
            assert (answer.status, answer.headers["x-models-etag"]) == (200, etag)
        other = await http.post("/v1/messages", json=messages())
        assert "x-models-etag" not in other.headers
        gateway.cards = [*gateway.cards, *CARDS]
        answer = await http.post("/v1/responses", json=responses())
        changed = (await http.get("/codex/models.json")).headers["etag"]
        assert answer.headers["x-models-etag"] == changed != etag


async def test_key_lists_the_models_that_it_may_use(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    digests = [hashlib.sha256(key).hexdigest() for key in (b"all", b"few")]
    keys.write_text(f"a:{digests[0]}\nb:{digests[1]} models=two\n")
    config = FrontendConfig(api_keys_file=str(keys))
    async with (
        serving(FakeGateway(cards=CARDS), config) as served,
        ClientSession(served.url) as http,
    ):
        seen = {}
        for key in ("all", "few"):
            document = await (await http.get("/v1/models", headers={"x-api-key": key})).json()
            seen[key] = (ids(document), [model["slug"] for model in document["models"]])
        assert seen == {"all": (ALL, ALL), "few": (["two"], ["two"])}
        assert (await http.get("/codex/models.json")).status == 401


def test_document_states_which_fields_limit_reasoning() -> None:
    def budgets(**fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = entry(ModelCard("m", **fields), "m")["capabilities"]["thinking"][
            "budgets"
        ]
        return found

    none: dict[str, list[str]] = {"messages": [], "chat": [], "responses": []}
    assert budgets() == {"supported": False, "enforced": none, "effort": {}}
    assert budgets(features=[THINKING_BUDGET])["enforced"]["messages"] == ["thinking.budget_tokens"]
    operators = budgets(features=[THINKING_BUDGET], effort_budgets={"low": 64})
    assert operators["effort"] == {"low": 64}
    assert [fields[-1] for fields in operators["enforced"].values()] == [
        "output_config.effort",
        "reasoning_effort",
        "reasoning.effort",
    ]


async def test_lifecycle_and_limit_are_read_from_the_query() -> None:
    async with serving(FakeGateway(cards=CARDS)) as served, ClientSession(served.url) as http:
        assert ids(await (await http.get("/v1/models?lifecycle[]=active")).json()) == ALL
        assert ids(await (await http.get("/v1/models?lifecycle[]=retired")).json()) == []
        assert (await http.get("/v1/models?limit=0")).status == 400
