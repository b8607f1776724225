"""The catalog follows the heartbeats, although it is not made again for each request."""

import pytest

from schemas.control import ModelCard
from schemas.errors import NotFound, Unavailable
from services.frontend.gateway.catalog import ModelCatalog
from services.runtime.registry import ProcessRegistry
from tests.kit.process import announce

DEAD_AFTER_S = 3.5


def catalog(registry: ProcessRegistry) -> ModelCatalog:
    return ModelCatalog(
        registry, default_model=None, accept_any_model=False, publish=lambda _: None
    )


def served(registry: ProcessRegistry, name: str, *, max_model_len: int = 1000) -> None:
    card = ModelCard(name, aliases=["a"], max_model_len=4096)
    announce(registry, card, stages=("preprocessor",))
    worker(registry, name, max_model_len)


def worker(registry: ProcessRegistry, name: str, max_model_len: int, process: str = "1") -> None:
    announce(registry, ModelCard(name, max_model_len=max_model_len), process, stages=("worker",))


def test_heartbeat_changes_the_catalog() -> None:
    registry = ProcessRegistry(DEAD_AFTER_S)
    models = catalog(registry)
    with pytest.raises(Unavailable) as starting:
        models.resolve("m")
    assert starting.value.info.retry_after_s
    served(registry, "m")
    assert models.resolve("a").max_model_len == 1000
    assert models.models() is models.models()
    served(registry, "m", max_model_len=500)
    assert models.resolve("a").max_model_len == 500
    worker(registry, "m", 700, "2")
    assert models.resolve("m").max_model_len == 700


def test_process_that_leaves_or_dies_takes_its_model_away() -> None:
    registry = ProcessRegistry(DEAD_AFTER_S)
    models = catalog(registry)
    served(registry, "m")
    assert models.resolve("m").name == "m"
    announce(registry, ModelCard("m"), stages=("worker",), at=1.0, leaving=True)
    registry.sweep(1.0)
    with pytest.raises(Unavailable):
        models.resolve("m")
    served(registry, "m")
    served(registry, "n")
    with pytest.raises(NotFound):
        models.resolve("m")
    assert [card.name for card in models.models()] == ["n"]
    for _ in range(2):  # the second one forgets the process
        registry.sweep(DEAD_AFTER_S + 1)
    assert models.models() == []
