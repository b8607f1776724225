"""Comparisons of prompts by fingerprints: reason and number, in generated sessions and through
published templates."""

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Call, Client, Conversation, Hints, RawPrompt, Text, ToolSpec
from schemas.events import PromptComparison
from services.preprocessor.changes.fingerprints import Fingerprints
from services.preprocessor.library import assemble
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from tests.kit.conversations import assistant, result, user

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [ToolSpec("Bash", "Runs a command.", SCHEMA), ToolSpec("Read", "Reads a file.", SCHEMA)]
LATER = ToolSpec("Later", "Does more.", SCHEMA, deferred=True)
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"


class Server:
    """One preprocessor's comparisons. Every turn has the number of its request as id."""

    def __init__(self, setup: ModelSetup) -> None:
        self.setup = setup
        self.kept = Fingerprints(1 << 22, lambda: 0.0, strip=setup.strip_preamble)
        self._ledger = open_ledger(setup, entry_bytes=1 << 20, prompt_bytes=1 << 20)
        self._count = 0

    def prompt(self, conversation: Conversation) -> Prompt:
        return assemble(conversation, self.setup, ledger=self._ledger)

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


CALL = assistant("Let me look.", Call("c1", "Bash", '{"command": "ls"}'))
SESSION = Conversation(
    "m",
    [
        *(user("first"), CALL, result("a\nb")),
        *(assistant("So."), user("and then?")),
    ],
    system=[Text(HEADER.format(100)), Text("Be brief.")],
    tools=[*TOOLS, LATER],
)


CHANGES: list[tuple[str, Conversation]] = [
    ("", replace(SESSION, system=[Text(HEADER.format("x")), Text("Be brief.")])),
    ("", replace(SESSION, tools=[*TOOLS, LATER, replace(LATER, name="L2")])),
    ("tools", replace(SESSION, tools=[replace(TOOLS[0], description="Other."), TOOLS[1]])),
    ("system", replace(SESSION, system=[SESSION.system[0], Text("Other.")])),
    ("messages", replace(SESSION, messages=[user("edited"), *SESSION.messages[1:]])),
    ("history", replace(SESSION, messages=SESSION.messages[:3])),
]
"""The reason, and the session with a change for it."""


def test_reason_and_number_are_those_of_the_change(server: Server) -> None:
    for reason, now in CHANGES:
        found, tokens, missed = server.change(SESSION, now)
        assert found.earlier == tokens
        if reason:
            assert found.missed == missed > 0
            assert found.changed[0] == reason
        else:
            assert (found.missed, found.changed) == (0, [])


def test_unknown_turn_and_prompt_without_fingerprint_are_told_apart(server: Server) -> None:
    session = Conversation("m", [user("a")])
    assert server.ask(session, None) is None
    assert server.ask(session, "never") == PromptComparison()
    assert server.ask(Conversation("m", [], prompt=RawPrompt("text")), "never") is None


def test_fingerprint_is_found_by_its_tenant_and_salt_only(setup: ModelSetup) -> None:
    server, session = Server(setup), Conversation("m", [user("a")])
    salted = replace(session, hints=Hints(cache_salt="s"))
    server.ask(session, tenant="red")
    foreign = [server.ask(session, "1"), server.ask(session, "1", tenant="blue")]
    foreign += [server.ask(salted, "1", tenant="red")]
    assert foreign == 3 * [PromptComparison()]
    tokens = len(server.prompt(session).ids)
    assert server.ask(session, "1", tenant="red") == PromptComparison(tokens)
