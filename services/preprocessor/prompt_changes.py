"""Reports why a session's prompt departs from the one before it: counters, and one log line per
session and cause.

Each prompt of an agent should begin with the one before it. Where it does not, the engine computes
everything after the first difference again, with every turn if the difference is a clock.

The one before it is known from the session id and the first question, and otherwise from the
history: a request continues the one with the answers that its own history begins with.
"""

from collections.abc import Sequence

from cachetools import LRUCache
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter

from schemas.conversation import Call, Conversation, Text
from schemas.session import SessionKey, session_key
from services.ledger.difference import ComparedPrompt, Difference, difference
from services.preprocessor.prompt import Prompt
from services.runtime.branch_cache import BranchCache
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.templates.tools import tool_name
from services.tokenization.segments import common_prefix

MAX_ALIKE = 32
"""Sessions without an id and with the same first question that are distinguished."""
MAX_BYTES = 64 * 1024 * 1024
MAX_REPORTED = 4096


class SeenPrompt(ComparedPrompt, frozen=True):
    """One prompt of a session; its `text` is what the next prompt should begin with."""

    answers: tuple[int, ...]
    """A hash for each answer in its history (`answers_of`)."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.text) + 4 * len(self.ids) + 8 * len(self.answers) + 512


class PromptChangeReporter:
    """Compares prompts with the last one of their session. Bounded in bytes."""

    def __init__(
        self, log: FilteringBoundLogger, metrics: CollectorRegistry, max_bytes: int = MAX_BYTES
    ) -> None:
        self._log = log
        self._last: BranchCache[SeenPrompt] = BranchCache(
            max_bytes, lambda one: one.size, MAX_ALIKE
        )
        """For each key: the last prompt of every session."""
        self._reported: LRUCache[tuple[SessionKey, str], bool] = LRUCache(MAX_REPORTED)
        text = "Prompts that did not begin with the last one of their session, by what varied."
        self._times = Counter("turnwire_prompt_varied", text, ["cause"], registry=metrics)
        text = "Tokens computed again because of it."
        self._tokens = Counter("turnwire_prompt_varied_tokens", text, ["cause"], registry=metrics)

    def report(self, conversation: Conversation, prompt: Prompt) -> None:
        """Compares a prompt with the last one of its session: 20 us for 52,000 tokens without a
        difference."""
        if conversation.prompt is not None or prompt.found is None or prompt.found.context is None:
            return
        session, end = (
            session_key(conversation),
            len(prompt.text) - len(prompt.found.context.opening),
        )
        now = SeenPrompt(
            text=prompt.text[:end],
            head=head_of(conversation, prompt.text, end),
            ids=prompt.found.ids,
            tools=tuple(
                tool_name(tool.name, tool.namespace)
                for tool in conversation.tools
                if not tool.deferred
            ),
            answers=answers_of(conversation),
        )
        found = self.compare(session, now, prompt.text)
        if found is None:
            return
        change = found.changes[0]
        cause = change.varies or change.kind
        self._times.labels(cause).inc()
        self._tokens.labels(cause).inc(found.again)
        if (session, cause) not in self._reported:
            self._reported[session, cause] = True
            write = self._log.debug if cause == "history" else self._log.warning
            write(
                "preprocessor.prompt_varies",
                cause=cause,
                tokens=found.again,
                was=change.was,
                now=change.now,
            )

    def compare(self, key: SessionKey, now: SeenPrompt, text: str) -> Difference | None:
        """Returns the difference to the last prompt of the same session; None where there is none,
        or no last prompt.

        `text`: the whole prompt. With the client's session id in the key, a request that continues
        none of its prompts has changed its history.
        """
        before = _continued(self._last.get(key), now, text, one_session=bool(key[1]))
        if before is not None:
            now = replace(now, head=before.head)
        self._last.put(key, now, instead_of=before)
        if before is None or text.startswith(before.text):
            return None
        return difference(before, replace(now, text=text))


def answers_of(conversation: Conversation) -> tuple[int, ...]:
    """Hashes each message of the model by text and call ids, which a client sends back each time."""
    return tuple(
        hash(
            (
                *(
                    part.text
                    for part in message.parts
                    if isinstance(part, Text) and not part.text.isspace()
                ),
                *(part.call_id for part in message.parts if isinstance(part, Call)),
            )
        )
        for message in conversation.messages
        if message.role == "assistant"
    )


def head_of(conversation: Conversation, text: str, end: int) -> int:
    """Returns the number of a prompt's characters before the first answer. `end`: where its turn
    opening begins.

    In a session that is first seen later than at its first request, this is where the last text
    before the first answer ends. That text is searched after those that come before it.
    """
    first = next(
        (at for at, message in enumerate(conversation.messages) if message.role == "assistant"),
        None,
    )
    if first is None:
        return end
    head = 0
    parts = [
        *conversation.system,
        *(part for message in conversation.messages[:first] for part in message.parts),
    ]
    for part in parts:
        if (
            isinstance(part, Text)
            and (wanted := part.text.strip())
            and (at := text.find(wanted, head, end)) >= 0
        ):
            head = at + len(wanted)
    return head


def _continued(
    alike: Sequence[SeenPrompt], now: SeenPrompt, text: str, *, one_session: bool
) -> SeenPrompt | None:
    """Returns the prompt that this one continues. `alike`: newest first.

    Among several it is one that this prompt begins with, or else one with which it shares most.
    Without a session id, a history that has not grown continues none: it may be another's.
    """
    found = [one for one in alike if one.answers == now.answers[: len(one.answers)]]
    if not one_session:
        found = [
            one for one in found if len(one.answers) < len(now.answers) or text.startswith(one.text)
        ]
    if not found:
        return alike[0] if alike and one_session else None
    longest = max(len(one.answers) for one in found)
    found = [one for one in found if len(one.answers) == longest]
    extended = next((one for one in found if text.startswith(one.text)), None)
    return extended or max(found, key=lambda one: len(common_prefix(one.text, text)))
