"""Comparisons of prompts by fingerprints: reason and number, in generated sessions and through
published templates."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Hints,
    Message,
    RawPrompt,
    Result,
    Text,
    ToolSpec,
)
from schemas.events import PromptComparison
from services.preprocessor.fingerprints import KEPT_S, MIN_BYTES, Fingerprints
from services.preprocessor.ledger_model import open_ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, encode_prompt
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import FileTokenizer
from tests.templates.adapting import user

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [ToolSpec("Bash", "Runs a command.", SCHEMA), ToolSpec("Read", "Reads a file.", SCHEMA)]
LATER = ToolSpec("Later", "Does more.", SCHEMA, deferred=True)
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"


class Server:
    """One preprocessor's comparisons. Every turn has the number of its request as id."""

    def __init__(self, setup: ModelSetup, max_bytes: int = 1 << 22) -> None:
        self.setup = setup
        self.now = 0.0
        self.kept = Fingerprints(max_bytes, lambda: self.now, strip=setup.strip_preamble)
        self._ledger = open_ledger(setup, entry_bytes=1 << 20, prompt_bytes=1 << 20)
        self._count = 0

    def prompt(self, conversation: Conversation) -> Prompt:
        return encode_prompt(conversation, self.setup, ledger=self._ledger)

    def ask(
        self, conversation: Conversation, compare: str | None = "", **client: Any
    ) -> PromptComparison | None:
        self._count += 1
        asked = replace(conversation, client=Client(compare=compare, **client))
        return self.kept.compare(str(self._count), asked, self.prompt(asked))

    def change(self, before: Conversation, now: Conversation) -> tuple[PromptComparison, int, int]:
        """The comparison of two prompts; the tokens of the first, and how many of them the second
        does not begin with."""
        self.ask(before)
        found = self.ask(now, str(self._count))
        assert found is not None
        old, new = [*self.prompt(before).ids], [*self.prompt(now).ids]
        same = next(
            (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
            len(new),
        )
        return found, len(old), len(old) - same


@pytest.fixture(scope="module")
def server(setup: ModelSetup) -> Server:
    return Server(setup)


CALL = Message("assistant", [Text("Let me look."), Call("c1", "Bash", '{"command": "ls"}')])
SESSION = Conversation(
    "m",
    [
        *(user("first"), CALL, Message("tool", [Result("c1", [Text("a\nb")])])),
        *(Message("assistant", [Text("So.")]), user("and then?")),
    ],
    system=[Text(HEADER.format(100)), Text("Be brief.")],
    tools=[*TOOLS, LATER],
)


CHANGES: list[tuple[str, Conversation]] = [
    ("", replace(SESSION, system=[Text(HEADER.format("x")), Text("Be brief.")])),
    ("", replace(SESSION, system=[Text("Be brief.")])),
    ("", replace(SESSION, tools=[*TOOLS, LATER, replace(LATER, name="L2")])),
    ("tools", replace(SESSION, tools=[replace(TOOLS[0], description="Other."), TOOLS[1]])),
    ("tools", replace(SESSION, tools=[*TOOLS, ToolSpec("T")])),
    ("system", replace(SESSION, system=[SESSION.system[0], Text("Other.")])),
    ("messages", replace(SESSION, messages=[user("edited"), *SESSION.messages[1:]])),
    ("history", replace(SESSION, messages=SESSION.messages[:3])),
    ("history", replace(SESSION, messages=[user("Summary.")])),
]
"""The reason, and the session with a change for it."""


@pytest.mark.parametrize("grows", [False, True])
def test_reason_and_number_are_those_of_the_change(server: Server, grows: bool) -> None:
    for reason, now in CHANGES:
        if grows:
            more = [Message("assistant", [Text("Yes.")]), user("And?")]
            now = replace(now, messages=[*now.messages, *more])
        found, tokens, missed = server.change(SESSION, now)
        assert found.earlier == tokens
        if not reason:
            assert (found.missed, found.changed) == (0, [])
            continue
        assert found.missed == missed > 0
        # A history that was cut and has grown again may be as long as before.
        grown = {"messages"} if reason == "history" and grows else set()
        assert found.changed[0] in {reason} | grown


def test_template_that_drops_earlier_text_is_not_a_change_of_the_request(
    setup: ModelSetup, demo_tokenizer: FileTokenizer
) -> None:
    template = "{% for m in messages %}{{ m.content if loop.last else '…' }}{% endfor %}assistant:"
    server = Server(dataclasses.replace(setup, template=ChatTemplate(demo_tokenizer, template)))
    before = Conversation("m", [user("a long question")])
    now = replace(before, messages=[*before.messages, Message("assistant", [Text("b")]), user("c")])
    found, _, missed = server.change(before, now)
    assert (found.missed, found.changed) == (missed, [])


def test_unknown_turn_and_prompt_without_fingerprint_are_told_apart(server: Server) -> None:
    session = Conversation("m", [user("a")])
    assert server.ask(session, None) is None
    assert server.ask(session, "never") == PromptComparison()
    assert server.ask(Conversation("m", [], prompt=RawPrompt("text")), "never") is None


def test_fingerprint_is_found_by_its_tenant_and_salt_only(setup: ModelSetup) -> None:
    server, session = Server(setup), Conversation("m", [user("a")])
    salted = replace(session, hints=Hints(cache_salt="s"))
    server.ask(session, tenant="red")
    for foreign in (
        server.ask(session, "1"),
        server.ask(session, "1", tenant="blue"),
        server.ask(salted, "1", tenant="red"),
    ):
        assert foreign == PromptComparison()
    tokens = len(server.prompt(session).ids)
    assert server.ask(session, "1", tenant="red") == PromptComparison(tokens)


def test_fingerprints_are_bounded_in_number_and_time(setup: ModelSetup) -> None:
    server, session = Server(setup, max_bytes=5 * MIN_BYTES), Conversation("m", [user("a")])
    for _ in range(50):
        server.ask(session)
    known = [server.ask(session, str(turn)) for turn in range(1, 51)]
    assert sum(found != PromptComparison() for found in known) <= 4
    assert server.ask(session, "100") != PromptComparison()
    server.now = KEPT_S + 1
    assert server.ask(session, "101") == PromptComparison()
    large = replace(session, messages=[user("word " * 5 * MIN_BYTES)])
    server.ask(large)
    assert server.ask(session, "103") == PromptComparison()


def test_fingerprint_holds_no_text(setup: ModelSetup) -> None:
    server = Server(setup)
    secret = "sesame sesame"
    session = Conversation(
        "m", [user(secret)], system=[Text(secret)], tools=[replace(TOOLS[0], description=secret)]
    )
    server.ask(session)
    (kept,) = server.kept._kept.values()
    fields = [getattr(kept, name) for name in kept.__struct_fields__]
    assert "sesame" not in repr(fields)
    assert (kept.conversation, kept.text, kept.tools) == (None, "", ())
