"""The catalog follows the heartbeats. Models that share an alias get sessions by weight, and keep
them."""

from collections import Counter
from collections.abc import Callable

import pytest

from schemas.control import ModelCard
from schemas.conversation import Client, Conversation, Message, Text
from schemas.errors import NotFound, Unavailable
from schemas.notices import SessionPlaced
from schemas.session import placement_key
from services.frontend.models.catalog import ModelCatalog, allow_all
from services.frontend.models.shared_names import SharedNames
from services.frontend.peers import NO_PEERS
from services.runtime.presence.registry import ProcessRegistry
from tests.kit.process import announce

DEAD_AFTER_S = 3.5


def catalog(registry: ProcessRegistry) -> ModelCatalog:
    return ModelCatalog(registry, NO_PEERS, default_model=None, accept_any_model=False)


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
    announce(registry, ModelCard("m", max_model_len=500), stages=("worker",), at=DEAD_AFTER_S)
    assert models.resolve("m").max_model_len == 700
    registry.sweep(DEAD_AFTER_S + 1)  # without a heartbeat
    assert models.resolve("m").max_model_len == 500


def test_model_has_the_newest_weights() -> None:
    registry = ProcessRegistry(DEAD_AFTER_S)
    models = catalog(registry)
    served(registry, "m")
    for process, version in (("1", 3), ("2", 4), ("3", 0)):
        announce(registry, ModelCard("m", weights_version=version), process, stages=("worker",))
    assert models.resolve("m").weights_version == 4


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


def adapted(registry: ProcessRegistry, name: str, *adapters: str, passes: bool = True) -> None:
    """A model with the alias `a`, and a worker for each adapter."""
    described = ModelCard(name, aliases=["a"], max_model_len=4096, passes_adapters=passes)
    announce(registry, described, name, stages=("preprocessor",))
    announce(registry, ModelCard(name), name, stages=("parser",))
    for adapter in adapters:
        worker_card = ModelCard(name, adapters=[adapter])
        announce(registry, worker_card, f"{name} {adapter}", stages=("worker",))


def test_adapter_is_found_under_its_names_and_a_models_names_precede_them() -> None:
    registry = ProcessRegistry(DEAD_AFTER_S)
    models = catalog(registry)
    adapted(registry, "m", "sql", "a", "n")
    adapted(registry, "m:n", "sql")

    def found(name: str) -> tuple[str, str]:
        resolved = models.resolve(name, Conversation(name, [], client=Client("s")))
        return resolved.name, resolved.adapter

    assert found("m:sql") == ("m", "sql")
    assert found("m:n:sql") == ("m:n", "sql")
    assert found("m:n") == ("m:n", ""), "the other model"
    assert found("n") == ("m", "n")
    assert found("a")[1] == ""
    assert found("a:a") == ("m", "a")
    assert found("sql") == found("a:sql")
    assert found("sql")[1] == "sql"
    for name in ("m:none", "none", "sql:m", "m:", "a:n:sql"):
        with pytest.raises(NotFound):
            found(name)
    assert models.ready_models() == ["m", "m:n"]
    registry.sweep(DEAD_AFTER_S + 1)
    adapted(registry, "m", "sql")
    with pytest.raises(NotFound):
        found("m:a")


def test_adapter_that_a_preprocessor_would_drop_is_not_served() -> None:
    """One of an older release, beside another one."""
    registry = ProcessRegistry(DEAD_AFTER_S)
    models = catalog(registry)
    adapted(registry, "m", "sql")
    assert models.resolve("m:sql").adapter == "sql"
    announce(registry, ModelCard("m", aliases=["a"]), "old", stages=("preprocessor",))
    for name in ("m:sql", "sql"):
        with pytest.raises(NotFound):
            models.resolve(name)


def test_unknown_name_may_mean_the_only_model_and_never_its_adapter() -> None:
    registry = ProcessRegistry(DEAD_AFTER_S)
    adapted(registry, "m", "sql")
    for default, adapter in ((None, ""), ("sql", "sql")):
        models = ModelCatalog(registry, NO_PEERS, default_model=default, accept_any_model=True)
        assert models.resolve("claude-opus").adapter == adapter


def card(name: str, weight: float = 1.0) -> ModelCard:
    return ModelCard(name, aliases=["coder"], weight=weight, max_model_len=1000)


def session(number: int) -> Conversation:
    return Conversation(model="coder", messages=[], client=Client(session=f"s{number}"))


def choices(frontend: SharedNames, cards: list[ModelCard], count: int = 1000) -> list[str]:
    return [
        frontend.choose("coder", cards, session(number), allow_all)[0].name
        for number in range(count)
    ]


def test_new_sessions_follow_the_weights() -> None:
    found = Counter(choices(SharedNames(), [card("v1", 9), card("v2", 1)]))
    assert 50 < found["v2"] < 150
    assert set(choices(SharedNames(), [card("v1", 0), card("v2", 0.1)])) == {"v2"}


def test_frontends_agree_on_a_session_that_none_has_seen() -> None:
    cards = [card("v1", 2), card("v2"), card("v3")]
    assert choices(SharedNames(), cards) == choices(SharedNames(), cards[::-1])


def test_session_without_an_id_is_identified_by_its_first_message() -> None:
    def asked(*texts: str) -> str:
        messages = [Message("user", [Text(text)]) for text in texts]
        return placement_key(Conversation(model="coder", messages=messages))

    assert asked("fix it") == asked("fix it", "and then?") != asked("explain it")
    assert asked("\ud800"), "a lone surrogate"


def test_whole_tree_of_agents_stays_with_one_model_while_it_takes_turns() -> None:
    """At several frontends, while weights change and models leave."""
    frontends = [SharedNames() for _ in range(2)]
    notices: list[SessionPlaced] = []

    def choose(frontend: SharedNames, cards: list[ModelCard], asked: Conversation) -> str:
        card, placed = frontend.choose("coder", cards, asked, allow_all)
        notices.extend(placed)
        for notice in placed:
            for other in frontends:
                other.apply(notice)
        return card.name

    def ask(name: str, *cards: ModelCard, parent: str | None = None) -> set[str]:
        asked = Conversation("coder", [], client=Client(name, parent=parent))
        return {choose(frontend, [*cards], asked) for frontend in frontends}

    for tree in range(20):
        root, helper, inner = f"root-{tree}", f"helper-{tree}", f"inner-{tree}"
        assert ask(root, card("v1"), card("v2", 0)) == {"v1"}
        assert ask(helper, card("v1", 0), card("v2"), parent=root) == {"v1"}
        assert ask(inner, card("v1", 0), card("v2"), parent=helper) == {"v1"}
        assert ask(helper, card("v2"), parent=root) == {"v2"}, "the whole tree moves"
        assert ask(root, card("v1", 9), card("v2")) == {"v2"}, "and does not return"
        assert ask(inner, card("v1", 9), card("v2"), parent=helper) == {"v2"}
        # Somebody sends a session's id, and invents a parent.
        assert ask("other", card("v1"), card("v2", 0)) == {"v1"}
        ask(root, card("v1"), card("v2"), parent="other")
        assert ask(root, card("v1"), card("v2")) == {"v2"}
    assert len(notices) == 20 * 4 + 1, "once a placement"


def versions(**weights: float) -> tuple[ProcessRegistry, ModelCatalog]:
    """A catalog that gets the heartbeats of several versions."""
    registry = ProcessRegistry(DEAD_AFTER_S)
    for name, weight in weights.items():
        announce(registry, card(name, weight), name)
    return registry, catalog(registry)


def test_alias_reaches_each_model_that_takes_turns_and_a_name_its_own() -> None:
    registry, models = versions(v1=1, v2=1)

    def chosen(name: str = "coder") -> set[str]:
        return {models.resolve(name, session(number)).name for number in range(40)}

    assert (chosen(), chosen("v1")) == ({"v1", "v2"}, {"v1"})
    assert versions(v1=1, v2=3)[1].resolve("coder").name == "v2"
    announce(registry, card("v1"), "v1", draining=True)
    assert chosen() == {"v2"}
    announce(registry, card("v1"), "v1")
    announce(registry, card("v1"), "v1", leaving=True)
    assert chosen() == {"v2"}
    announce(registry, card("v2"), "v2", leaving=True)
    assert models.resolve("coder", session(1)), "both are listed: the turn waits for one of them"


def test_model_is_chosen_among_those_of_an_alias_that_are_allowed() -> None:
    registry, models = versions(v1=1, v2=1, v3=1)

    def allows(described: ModelCard) -> bool:
        return described.name in ("v1", "v3")

    def chosen(allows: Callable[[ModelCard], bool] = allow_all) -> list[str]:
        return [models.resolve("coder", session(number), allows).name for number in range(40)]

    free = chosen()
    assert set(chosen(allows)) == {"v1", "v3"}
    assert chosen() == free, "whoever may use the model of a session finds it there"
    announce(registry, card("v1"), "v1", draining=True)
    assert set(chosen(allows)) == {"v3"}
    announce(registry, card("v3"), "v3", draining=True)
    assert set(chosen(allows)) <= {"v1", "v3"}, "the turn waits for one of them"
    assert set(chosen()) == {"v2"}
    assert models.resolve("coder", session(1), lambda _: False), "the request is refused"
    assert models.resolve("v2", session(1), allows).name == "v2"


def test_helper_of_a_session_that_stays_elsewhere_belongs_to_it() -> None:
    frontend = SharedNames()
    cards = [card("v1"), card("v2")]
    frontend.apply(SessionPlaced(placement_key(session(0)), "coder", "v2"))
    asked = Conversation("coder", [], client=Client("h", parent="s0"))
    found, _ = frontend.choose("coder", cards, asked, lambda one: one.name == "v1")
    assert found.name == "v1"
    inner = Conversation("coder", [], client=Client("i", parent="h"))
    assert frontend.choose("coder", cards, inner, allow_all)[0].name == "v2"
