"""Finds the session of a request: the turn that it follows, and the agent that started it. Pure."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from cachetools import LRUCache

from schemas.conversation import Call, Client, Conversation, Part, Text
from schemas.session import first_question
from services.ledger.turns.chain import answers_in, content_of
from turnwire_tools.inspector.turns import InspectedTurn

MAX_ALIKE = 16
"""Turns with one history that are kept as separate candidates."""


class SessionFinder:
    """What is known of the sessions that the next request may belong to."""

    def __init__(
        self, turns: Mapping[str, InspectedTurn], sessions: dict[str, list[str]], max_turns: int
    ) -> None:
        """`turns`: by id. `sessions`: the turns of each session, by its first turn; `place` adds to
        them."""
        self._turns = turns
        self._sessions = sessions
        self._histories: LRUCache[int, list[str]] = LRUCache(8 * max_turns)
        """Turns by the history that the next request of their session has."""
        self._contents: LRUCache[int, int] = LRUCache(max_turns)
        """Hashes of what answers have in every form, by those of their parts as they are: each
        request of a session has all answers again."""
        self._latest: LRUCache[int, str] = LRUCache(max_turns)
        """The newest turn by the key of a session's beginning."""
        self._agents: LRUCache[int, str] = LRUCache(max_turns)
        """The session by the key of the tenant and the client's own id of it."""
        self._titles: LRUCache[int, str] = LRUCache(max_turns)
        """Sessions of a background request that came before the first of its agent, by the same
        key."""

    def newest(self, conversation: Conversation) -> str:
        """The newest turn with the session's beginning; "": there is none."""
        return self._latest.get(_beginning_key(conversation), "")

    def place(self, turn: InspectedTurn, conversation: Conversation, keys: list[int]) -> None:
        """Puts a new turn into the session of the turn that it follows, or into one of its own."""
        turn.history = keys[-1] if len(keys) > 1 else _start_key(conversation)

        previous = self._previous(keys, has_id=bool(conversation.client.session))
        if previous is not None:
            turn.previous = previous.id
            turn.session = previous.session

        names = self._sessions.setdefault(turn.session, [])
        if names:
            turn.number = self._turns[names[-1]].number + 1
        names.append(turn.id)

        self._remember(keys[-1], turn.id)
        self._latest[keys[0]] = turn.id

    def _previous(self, keys: list[int], *, has_id: bool) -> InspectedTurn | None:
        """The turn with the longest history that the request has, too."""
        # Without a session id, a history without an answer may be that of any session.
        searched = keys if has_id else keys[1:]
        for key in reversed(searched):
            previous = self._best(self._histories.get(key, ()))
            if previous is None:
                continue
            if key == keys[-1]:
                return previous
            # An answer that was never seen, or that the client changed: the newest turn is the one
            # before.
            return self._best(self._sessions[previous.session]) or previous

        whole_history_changed = has_id and len(keys) > 1
        if whole_history_changed:
            return self._turns.get(self._latest.get(keys[0], ""))
        return None

    def find_parent(self, turn: InspectedTurn, client: Client) -> list[InspectedTurn]:
        """Finds the session of the agent that started this one. Returns the turns of a title that
        this turn is the parent of.

        A session keeps its parent, which is older, so that there are no circles. Only the parent of
        a title may be younger: so far that session has nothing but titles, which start no agents.
        """
        turn.kind = client.kind
        is_background = client.kind == "background"
        own_key = hash((client.tenant, client.session))

        oldest = self._sessions[turn.session][0]
        if oldest == turn.id:
            turn.parent = self._agents.get(_caller_key(client), "")
            if is_background and not turn.parent:
                self._titles[own_key] = turn.session
        else:
            turn.parent = self._turns[oldest].parent

        if is_background or client.session is None:
            return []
        self._agents[own_key] = turn.session
        return self._adopt_title(own_key, turn.session)

    def _adopt_title(self, key: int, parent: str) -> list[InspectedTurn]:
        """Makes a session the parent of the title that came before it."""
        title = self._titles.pop(key, "")
        if title == parent:
            return []
        adopted = [self._turns[name] for name in self._sessions.get(title, ())]
        for turn in adopted:
            turn.parent = parent
        return adopted

    def answered(self, turn: InspectedTurn, answer: Sequence[Part]) -> None:
        """The next request of the session has this answer after the history of this one."""
        self._remember(hash((turn.history, self._content_hash(answer))), turn.id)

    def history_keys(self, conversation: Conversation, known: list[int], shared: int) -> list[int]:
        """A key for the history after each answer; the first one for none.

        `known`: the keys of a request with the first `shared` messages; empty: they are not known.
        Requests with a session id and the same tools and first question are of one session. Agents
        send the requests of their helpers under the same id. Without an id, the answers and the
        first question have to be the same: sessions may have answers that are alike.
        """
        before = known or [_beginning_key(conversation)]
        state = known[-1] if len(known) > 1 else _start_key(conversation)
        answers = map(self._content_hash, answers_in(conversation.messages[shared:]))
        histories = accumulate(answers, lambda state, answer: hash((state, answer)), initial=state)
        _, *after_answers = histories
        return [*before, *after_answers]

    def _content_hash(self, answer: Sequence[Part]) -> int:
        texts = [part.text for part in answer if isinstance(part, Text)]
        calls = [
            (part.name, part.namespace, part.kind, part.arguments)
            for part in answer
            if isinstance(part, Call)
        ]
        key = hash((*texts, *calls))
        content_hash = self._contents.get(key)
        if content_hash is None:
            content_hash = self._contents[key] = hash(content_of(answer))
        return content_hash

    def _best(self, names: Sequence[str]) -> InspectedTurn | None:
        """The newest turn that has an answer, else the newest."""
        kept = [self._turns[name] for name in names if name in self._turns]
        return max(kept, key=lambda turn: (turn.state == "finished", turn.time), default=None)

    def _remember(self, key: int, name: str) -> None:
        alike = self._histories.get(key, [])
        self._histories[key] = [*alike[1 - MAX_ALIKE :], name]


def _caller_key(client: Client) -> int:
    """The key of the agent that sent a request for another session."""
    caller = client.parent
    if client.kind == "background" and caller is None:
        caller = client.session
    return hash((client.tenant, caller))


def _beginning_key(conversation: Conversation) -> int:
    """The key of a session's beginning."""
    tools = tuple(tool.name for tool in conversation.tools)
    return hash((_start_key(conversation), first_question(conversation), tools))


def _start_key(conversation: Conversation) -> int:
    """The key of a history without an answer, on which those of its answers are based."""
    client = conversation.client
    session = client.session or first_question(conversation)
    return hash((conversation.model, client.tenant, session))
