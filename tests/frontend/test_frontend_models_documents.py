"""Tests the models document for three families of clients, names with slashes, and pages."""

from typing import Any

import pytest

from schemas.control import ModelCard
from services.frontend.apis.models.documents import entry, listing, names
from tests.kit.every import for_rows

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


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_entries_fit_the_strict_types_of_both_sdks(card: ModelCard) -> None:
    from anthropic.types import ModelInfo
    from openai.types import Model

    made: Any = entry(card, card.name)
    info: Any = ModelInfo.model_validate(made, strict=False)
    assert info.lifecycle == "active"
    assert info.max_input_tokens == (card.max_model_len or None)
    assert info.max_tokens == (card.max_output_tokens or None)
    effort = info.capabilities.effort
    assert info.capabilities.thinking.supported is card.reasoning
    assert effort.supported is bool(card.efforts)
    levels = ("low", "medium", "high", "max")
    assert [level for level in levels if getattr(effort, level).supported] == card.efforts
    assert info.capabilities.structured_outputs.supported is ("guided" in card.features)
    assert (made["created"], made["parent"]) == (card.created, None)
    assert card.name in made["description"]

    made = entry(card, "alias")
    model = Model.model_validate(made, strict=True)
    assert (model.id, model.object, model.owned_by) == ("alias", "model", "turnwire")
    # As vLLM's clients expect it.
    assert (made["root"], made["parent"]) == (card.name, card.name)
    assert made["max_model_len"] == (card.max_model_len or None)
    assert made["permission"][0]["allow_sampling"] is True


@for_rows(
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
