"""Keys of sessions: the same in every release where processes or entries of other releases compare
them."""

from typing import Any

from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Message, Text
from schemas.session import helper_key, placement_key, session_digest, session_key, tenant_key
from tests.kit.conversations import assistant, user

ASKED = [
    Message("system", [Text("Be brief.")]),
    user("hé", "b"),
    user("more"),
]


def asked(*messages: Message, **client: Any) -> Conversation:
    return Conversation("m", list(messages) or ASKED, client=Client(**client))


def test_keys_and_digests_stay() -> None:
    key = "c7fcfa0807afce487a633605298babe6"
    assert placement_key(asked()) == placement_key(asked(tenant="t")) == key
    assert placement_key(asked(session="")) == "99aa06d3014798d86001c324468d497f"
    assert tenant_key(asked(tenant="t"), "s") == "c183c70882e9e97327a5f4e97803d5a8"
    assert session_digest("abc").hex() == "90db0bd48d4238fb"
    assert session_digest("\ud800") != session_digest("?")
    assert session_digest(None) == session_digest("") == b""


def test_a_helper_is_placed_with_the_agent_that_started_it() -> None:
    helper, another = (asked(session=name, parent="s") for name in ("helper", "another"))
    assert placement_key(helper) == placement_key(another) == placement_key(asked(session="s"))
    assert placement_key(helper) != placement_key(asked(session="helper"))
    assert helper_key(helper) == placement_key(asked(session="helper"))
    assert helper_key(asked(session="s")) is helper_key(asked(parent="s")) is None


def test_requests_of_one_session_share_a_key() -> None:
    session = {"session": "s", "tenant": "t"}
    first = session_key(asked(*ASKED[:2], **session))
    assert session_key(asked(*ASKED, assistant("x"), **session)) == first
    another = asked(user("another"), **session)
    others = [asked(session="s"), asked(tenant="t"), another]
    assert len({first, *map(session_key, others)}) == 4
    adapted = [replace(asked(**session), adapter=adapter) for adapter in ("", "a", "b")]
    assert len({*map(session_key, adapted)}) == 3
    assert len({tenant_key(one, id) for one in adapted for id in (None, "s")}) == 6
    assert len({*map(placement_key, adapted)}) == 1, "which frontends of other releases have, too"
    empty = Conversation("m", [assistant()])
    assert session_key(Conversation("m", [])) == session_key(empty)
