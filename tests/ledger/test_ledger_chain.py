"""Cached chains of keys equal computed ones."""

import concurrent.futures

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.conversation import Client, Conversation, Media, Message, Reasoning, Text
from services.ledger.chain import ChainCache, chain_of
from services.runtime.branch_cache import BRANCHES
from tests.kit.examples import examples
from tests.templates.adapting import assistant, call, result, user

texts = st.sampled_from(["a", "b c", "", " "])
kinds = st.sampled_from(["user", "answer", "call", "result", "thought", "media", "system"])


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


@settings(max_examples=examples(150))
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2), st.lists(st.tuples(kinds, texts), max_size=4), st.integers(0, 3)
        ),
        max_size=25,
    ),
    room=st.sampled_from([0, 5000, 1 << 20]),
)
def test_cached_chains_equal_computed_ones_in_any_order(
    steps: list[tuple[int, list[tuple[str, str]], int]], room: int
) -> None:
    """Sessions grow, go back and change their instructions; ids of calls repeat."""
    cache = ChainCache(room)
    sessions: dict[int, list[Message]] = {}
    for which, more, back in steps:
        messages = sessions.get(which, [])
        messages = messages[: len(messages) - back] if back == 3 else messages
        messages = [
            *messages,
            *(message(kind, text, len(messages) + at) for at, (kind, text) in enumerate(more)),
        ]
        sessions[which] = messages
        for scope in (b"one", b"two"):
            conversation = Conversation(
                "m", messages, system=[Text("S" * which), Text("T" * 4096 * (which % 2))]
            )
            assert cache.chain_of(conversation, scope) == chain_of(conversation, scope)
        assert cache.size <= room


def test_only_new_messages_are_hashed() -> None:
    cache = ChainCache(1 << 20)
    messages = [user("hi")]
    for number in range(50):
        messages = [
            *messages,
            assistant(call("run", "{}", f"c{number}")),
            result("ok", f"c{number}"),
        ]
        before = cache.chain_of(Conversation("m", messages), b"")
        after = cache.chain_of(
            Conversation("m", [*messages, assistant(Text("so")), user("go on")]), b""
        )
        assert [one is other for one, other in zip(before.turns, after.turns, strict=False)] == [
            True
        ] * (number + 1)


def test_chain_with_an_open_turn_is_not_continued() -> None:
    cache = ChainCache(1 << 20)
    open_ended = [user("hi"), assistant(Text("a"))]
    grown = [*open_ended, assistant(Text("b")), user("so")]
    for messages in (open_ended, grown, open_ended):
        assert cache.chain_of(Conversation("m", messages), b"") == chain_of(
            Conversation("m", messages), b""
        )


def test_threads_and_branches_share_a_cache() -> None:
    cache = ChainCache(60_000)
    requests = [
        Conversation(
            "m",
            [
                user("hi"),
                *(
                    message
                    for at in range(length)
                    for message in (assistant(Text(f"{which} {at}")), user("x"))
                ),
            ],
            client=Client(session=str(which % 3)),
        )
        for which in range(2 * BRANCHES)
        for length in range(1, 12)
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda conversation: cache.chain_of(conversation, b""), requests * 3))
    assert found == [chain_of(conversation, b"") for conversation in requests] * 3
    assert cache.size <= 60_000


def test_long_instructions_are_hashed_once() -> None:
    cache = ChainCache(1 << 20)
    long = "Be careful. " * 1000
    systems = ([long, "a"], [long, "b"], [long + "a"], [long], ["a", long], [long, "a", ""])
    for _ in range(2):
        for scope in (b"one", b"two"):
            for texts in systems:
                for messages in (
                    [user("hi")],
                    [user("other")],
                    [user("hi"), assistant(Text("so")), user("go on")],
                ):
                    conversation = Conversation(
                        "m", messages, system=[Text(text) for text in texts]
                    )
                    assert cache.chain_of(conversation, scope) == chain_of(conversation, scope)
    assert 0 < cache.size <= 1 << 20


def test_images_differ_by_their_data() -> None:
    """Two screenshots of one size are different questions."""
    chains = set()
    for image in ("", "a" * 40, "b" * 40):
        media = Media("image", "image/png", 99, hash=image, width=9, height=9)
        messages = [Message("user", [media]), assistant(Text("ok")), user("next")]
        chains.add(repr(chain_of(Conversation("m", messages), b"")))
    assert len(chains) == 3
