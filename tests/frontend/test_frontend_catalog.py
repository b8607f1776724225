"""The catalog follows the beats, although it is not put together anew for each request."""

import pytest

from schemas.control import Beat, ModelCard
from schemas.errors import NotFound, Unavailable
from services.frontend.catalog import Catalog
from services.runtime.registry import Registry

DEAD_AFTER_S = 3.5


def catalog(registry: Registry) -> Catalog:
    return Catalog(registry, default_model=None, accept_any_model=False)


def served(registry: Registry, name: str, *, max_model_len: int = 1000) -> None:
    registry.heard(Beat("preprocessor", "p1", models=[ModelCard(name, aliases=["a"], max_model_len=4096)]), 0.0)
    registry.heard(Beat("worker", "w1", models=[ModelCard(name, max_model_len=max_model_len)]), 0.0)


def test_a_beat_changes_what_was_told_before() -> None:
    registry = Registry(DEAD_AFTER_S)
    models = catalog(registry)
    with pytest.raises(Unavailable):
        models.resolve("m")
    served(registry, "m")
    assert models.resolve("a").max_model_len == 1000
    assert models.models() is models.models()
    served(registry, "m", max_model_len=500)
    assert models.resolve("a").max_model_len == 500
    registry.heard(Beat("worker", "w2", models=[ModelCard("m", max_model_len=700)]), 0.0)
    assert models.resolve("m").max_model_len == 700


def test_who_leaves_or_dies_takes_the_model_away() -> None:
    registry = Registry(DEAD_AFTER_S)
    models = catalog(registry)
    served(registry, "m")
    assert models.resolve("m").name == "m"
    registry.heard(Beat("worker", "w1", leaving=True), 1.0)
    with pytest.raises(Unavailable):
        models.resolve("m")
    served(registry, "m")
    served(registry, "n")
    with pytest.raises(NotFound):
        models.resolve("m")
    assert [card.name for card in models.models()] == ["n"]
    registry.sweep(DEAD_AFTER_S + 1)
    assert models.models() == []
