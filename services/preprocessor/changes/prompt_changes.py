"""Reports why a session's prompt departs from the one before it: counters, and one log line per
session and cause.

Each prompt of an agent should begin with the one before it. Where it does not, the engine computes
everything after the first difference again, with every turn if the difference is a clock.

The one before it is known from the session id and the first question, and otherwise from the
history: a request continues the one with the answers that its own history begins with.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from operator import attrgetter
from secrets import token_bytes

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter

from schemas.conversation import Call, Conversation, Message, Part, Text
from schemas.session import SessionKey, session_key
from services.preprocessor.prompt.prompt_maker import Prompt
from services.prompt_diff.prompts import ComparedPrompt, Difference, difference
from services.runtime.caches.branch_cache import BranchCache
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.tokenization.segments import common_prefix

MAX_ALIKE = 32
"""Sessions without an id and with the same first question that are distinguished."""
MAX_BYTES = 64 * 1024 * 1024


class SeenPrompt(ComparedPrompt, frozen=True):
    """One prompt of a session; its `text` is what the next prompt should begin with."""

    answers: tuple[int, ...]
    """A hash for each answer in its history (`answers_of`)."""
    logged: set[str] = set()
    """The causes that were logged for its session; all prompts of a session share this set."""

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
        self._last: BranchCache[SeenPrompt] = BranchCache(max_bytes, attrgetter("size"), MAX_ALIKE)
        """For each key: the last prompt of every session."""
        self._log_key = token_bytes(32)
        """Without it, short words could be guessed from their digests."""
        self._times = Counter(
            "turnwire_prompt_varied",
            "Prompts that did not begin with the last one of their session, by what varied.",
            ["cause"],
            registry=metrics,
        )
        self._tokens = Counter(
            "turnwire_prompt_varied_tokens",
            "Tokens computed again because of it.",
            ["cause"],
            registry=metrics,
        )

    def report(self, conversation: Conversation, prompt: Prompt) -> None:
        """Compares a prompt with the last one of its session: 20 us for 52,000 tokens without a
        difference."""
        context = prompt.encoded.context
        if context is None:
            return
        end = len(prompt.text) - len(context.opening)
        now = SeenPrompt(
            text=prompt.text[:end],
            ids=prompt.encoded.ids,
            tools=tuple(tool.name for tool in prompt.tools if not tool.deferred),
            answers=answers_of(conversation),
        )
        self.compare(session_key(conversation), now, prompt.text, conversation)

    def _count(self, difference: Difference, logged: set[str]) -> None:
        """Counts a difference, and logs the first of each cause in a session. `logged`: its causes
        until now."""
        change = difference.changes[0]
        cause = change.varies or change.kind
        self._times.labels(cause).inc()
        self._tokens.labels(cause).inc(difference.again)
        if cause in logged:
            return
        logged.add(cause)
        log = self._log.debug if cause == "history" else self._log.warning
        log(
            "preprocessor.prompt_varies",
            cause=cause,
            tokens=difference.again,
            where=change.where,
            was=self._digest(change.was),
            now=self._digest(change.now),
        )

    def _digest(self, words: str) -> str:
        """Returns a digest of words of prompts, which are never logged: equal words have equal
        digests in the log of this process."""
        digest = blake2b(words.encode("utf-8", "replace"), key=self._log_key, digest_size=6)
        return digest.hexdigest()

    def compare(
        self, key: SessionKey, now: SeenPrompt, text: str, conversation: Conversation
    ) -> Difference | None:
        """Returns the difference to the last prompt of the same session, and counts it; None where
        there is none, or no last prompt.

        `now` has no `head` yet; `text`: the whole prompt. With the client's session id in the key,
        a request that continues none of its prompts has changed its history.
        """
        before = _continued(self._last.get(key), now, text, one_session=bool(key[1]))
        if before is None:
            now = replace(now, head=head_of(conversation, text, len(now.text)))
        else:
            now = replace(now, head=before.head, logged=before.logged)
        self._last.put(key, now, instead_of=before)
        if before is None or text.startswith(before.text):
            return None
        change = difference(before, replace(now, text=text))
        self._count(change, before.logged)
        return change


def answers_of(conversation: Conversation) -> tuple[int, ...]:
    """Hashes each message of the model by what a client sends back each time."""
    return tuple(
        hash(_texts_and_call_ids(message))
        for message in conversation.messages
        if message.role == "assistant"
    )


def _texts_and_call_ids(message: Message) -> tuple[str, ...]:
    texts: list[str] = []
    call_ids: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            if not part.text.isspace():
                texts.append(part.text)
        elif isinstance(part, Call):
            call_ids.append(part.call_id)
    return (*texts, *call_ids)


def head_of(conversation: Conversation, text: str, end: int) -> int:
    """Returns the number of a prompt's characters before the first answer. `end`: where its turn
    opening begins.

    In a session that is first seen later than at its first request, this is where the last text
    before the first answer ends. That text is searched after those that come before it.
    """
    before_answer = list(takewhile(_is_not_an_answer, conversation.messages))
    if len(before_answer) == len(conversation.messages):
        return end

    parts: list[Part] = [*conversation.system]
    for message in before_answer:
        parts += message.parts
    head = 0
    for part in parts:
        content = part.text.strip() if isinstance(part, Text) else ""
        start = text.find(content, head, end)
        if content and start >= 0:
            head = start + len(content)
    return head


def _is_not_an_answer(message: Message) -> bool:
    return message.role != "assistant"


def _continued(
    alike: Sequence[SeenPrompt], now: SeenPrompt, text: str, *, one_session: bool
) -> SeenPrompt | None:
    """Returns the prompt that this one continues. `alike`: newest first.

    Among several it is one that this prompt begins with, or else one with which it shares most.
    Without a session id, a history that has not grown continues none: it may be another's.
    """
    candidates = [
        earlier for earlier in alike if _may_continue(earlier, now, text, one_session=one_session)
    ]
    if not candidates:
        return alike[0] if alike and one_session else None

    longest = max(len(earlier.answers) for earlier in candidates)
    candidates = [earlier for earlier in candidates if len(earlier.answers) == longest]
    for earlier in candidates:
        if text.startswith(earlier.text):
            return earlier
    return max(candidates, key=lambda earlier: len(common_prefix(earlier.text, text)))


def _may_continue(earlier: SeenPrompt, now: SeenPrompt, text: str, *, one_session: bool) -> bool:
    """Whether the prompt's history begins with that of an earlier prompt."""
    if earlier.answers != now.answers[: len(earlier.answers)]:
        return False
    has_grown = len(earlier.answers) < len(now.answers)
    return one_session or has_grown or text.startswith(earlier.text)
