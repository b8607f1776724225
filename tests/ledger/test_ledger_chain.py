"""Cached chains of keys equal computed ones."""

import concurrent.futures
from itertools import product

from schemas.conversation import Client, Conversation, Media, Message, Reasoning, Text
from services.ledger.turns.chain import ChainCache, chain_of
from services.runtime.caches.branch_cache import BRANCHES
from tests.kit.conversations import assistant, call, result, user
from tests.kit.examples import chances

TEXTS = ("a", "b c", "", " ")
KINDS = ("user", "answer", "call", "result", "thought", "media", "system")


def message(kind: str, text: str, number: int) -> Message:
    made = {
        "user": user(text),
        "answer": assistant(Text(text)),
        "call": assistant(Text(text), call("run", '{"a": 1}', f"c{number % 4}")),
        "result": result(text, f"c{number % 5}"),
        "thought": assistant(Reasoning(text), Text("x")),
        "media": Message("user", [Media("image", text)]),
        "system": Message("system", [Text(text)]),
    }
    return made[kind]


def test_cached_chains_equal_computed_ones_in_any_order() -> None:
    """Sessions grow, go back and change their instructions; ids of calls repeat."""
    for chance in chances("chain", 150):
        room = chance.choice((0, 5000, 1 << 20))
        cache = ChainCache(room)
        sessions: dict[int, list[Message]] = {}
        for _ in range(chance.randint(1, 12)):
            which = chance.randint(0, 2)
            messages = sessions.get(which, [])
            if chance.random() < 0.25:
                messages = messages[:-3]
            for _ in range(chance.randint(0, 4)):
                more = message(chance.choice(KINDS), chance.choice(TEXTS), len(messages))
                messages = [*messages, more]
            sessions[which] = messages
            system = [Text("S" * which), Text("T" * 4096 * (which % 2))]
            for scope in (b"one", b"two"):
                conversation = Conversation("m", messages, system=system)
                assert cache.chain_of(conversation, scope) == chain_of(conversation, scope)
            assert cache.size <= room


def test_only_new_messages_are_hashed() -> None:
    cache = ChainCache(1 << 20)
    messages = [user("hi")]
    for number in range(50):
        messages += [assistant(call("run", "{}", f"c{number}")), result("ok", f"c{number}")]
        before = cache.chain_of(Conversation("m", [*messages]), b"")
        later = [*messages, assistant(Text("so")), user("go on")]
        after = cache.chain_of(Conversation("m", later), b"")
        assert [*map(id, after.turns[: number + 1])] == [*map(id, before.turns)]
        assert len(before.turns) == number + 1


def dialogue(which: int, length: int) -> Conversation:
    messages = [user("hi")]
    for at in range(length):
        messages += [assistant(Text(f"{which} {at}")), user("x")]
    return Conversation("m", messages, client=Client(session=str(which % 3)))


def test_threads_and_branches_share_a_cache() -> None:
    cache = ChainCache(60_000)
    requests = [dialogue(*one) for one in product(range(2 * BRANCHES), range(1, 12))]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda conversation: cache.chain_of(conversation, b""), requests * 3))
    assert found == [chain_of(conversation, b"") for conversation in requests] * 3
    assert cache.size <= 60_000


def test_images_differ_by_their_data() -> None:
    """Two screenshots of one size are different questions."""
    chains = set()
    for image in ("", "a" * 40, "b" * 40):
        media = Media("image", "image/png", 99, hash=image, width=9, height=9)
        messages = [Message("user", [media]), assistant(Text("ok")), user("next")]
        chains.add(repr(chain_of(Conversation("m", messages), b"")))
    assert len(chains) == 3
