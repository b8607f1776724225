"""Keys of sessions: the same in every release where processes or entries of other releases compare
them."""

import pytest

from schemas.conversation import Client, Conversation, Message, Text
from schemas.session import placement_key, session_digest, session_key

ASKED = [
    Message("system", [Text("Be brief.")]),
    Message("user", [Text("hé"), Text("b")]),
    Message("user", [Text("more")]),
]


@pytest.mark.parametrize(
    ("client", "key"),
    [
        (Client(), "c7fcfa0807afce487a633605298babe6"),
        (Client(tenant="t"), "c7fcfa0807afce487a633605298babe6"),
        (Client(session=""), "99aa06d3014798d86001c324468d497f"),
    ],
)
def test_placement_keys_stay(client: Client, key: str) -> None:
    assert placement_key(Conversation("m", ASKED, client=client)) == key


def test_a_helper_is_placed_with_the_agent_that_started_it() -> None:
    def key(session: str, parent: str | None = None) -> str:
        return placement_key(
            Conversation("m", ASKED, client=Client(session=session, parent=parent))
        )

    assert key("helper", "s") == key("another", "s") == key("s") != key("helper")


def test_digests_in_entries_stay() -> None:
    assert session_digest("abc").hex() == "90db0bd48d4238fb"
    assert session_digest("\ud800") != session_digest("?")
    assert session_digest(None) == session_digest("") == b""


def test_requests_of_one_session_share_a_key() -> None:
    first = Conversation("m", ASKED[:2], client=Client(session="s", tenant="t"))
    later = Conversation(
        "m", [*ASKED, Message("assistant", [Text("x")])], client=Client(session="s", tenant="t")
    )
    assert session_key(first) == session_key(later)
    others = [
        Conversation("m", ASKED, client=Client(session="s")),
        Conversation("m", ASKED, client=Client(tenant="t")),
        Conversation(
            "m", [Message("user", [Text("another")])], client=Client(session="s", tenant="t")
        ),
    ]
    assert len({session_key(one) for one in [first, *others]}) == 4
    assert session_key(Conversation("m", [])) == session_key(
        Conversation("m", [Message("assistant", [])])
    )
