"""Chooses the ledger's turn for each turn of a conversation, among siblings: the right one or none.

Siblings are turns with the same visible history, as look-alike sessions, retries and forks have
them. The newest turn is decided first, by the first of these rules that applies:

| siblings in memory                                       | the match                         |
|----------------------------------------------------------|-----------------------------------|
| none                                                     | unknown                           |
| the client sent ids or seals of this server: one has one | that one, if it has all; else it  |
| of them                                                  | is changed (client)               |
| ... none has any of them                                 | unknown: the right one is lost    |
| the client sent reasoning: none has it                   | changed (client)                  |
| more than `MAX_COMPARED` are left                        | ambiguous                         |
| those that are left are narrowed down (below): they      | ambiguous                         |
| still differ, or one is left that is not certain         |                                   |
| one is left, or several that differ in nothing but the   | found; changed (client) if the    |
| prompt before them                                       | client's turn is not equal        |

Siblings are narrowed down to those of the conversation's session:

1. by their earlier turns, which the evidence in the conversation proves or refutes;
2. if they differ, by the newest earlier turn that the client's reasoning decides;
3. if they differ, by the client's session id.

One that no evidence proves is certain if it adds no reasoning which the client did not send, or if
its session id is the client's and memory is known to have all siblings.

The turns before a decided one follow from it: its entry names the one that its own prompt restored
last, and so on.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from schemas.conversation import Conversation, Message, Unseal
from schemas.ledger import LedgerEntry
from schemas.session import session_digest
from services.ledger.chain import SentTurn
from services.ledger.evidence import Evidence, Proof, evidence_of
from services.ledger.match import Match, Outcome
from services.ledger.restore import Restorer
from services.ledger.store import EntryStore
from services.ledger.turn import Turn

MAX_COMPARED = 256
"""Siblings that are compared where no id or seal names one. If there are more, none is chosen."""

_UNKNOWN = Match(Outcome.UNKNOWN)
_CLIENT = Match(Outcome.CLIENT)
_AMBIGUOUS = Match(Outcome.AMBIGUOUS)


class ChosenMatches(Struct, frozen=True):
    """The matches of one conversation."""

    matches: list[Match]
    """One for each turn of the model, oldest first."""
    missing: list[bytes]
    """Keys for which the store may lack the right entry, oldest first."""


def choose(
    conversation: Conversation,
    sent_turns: Sequence[SentTurn],
    store: EntryStore,
    restorer: Restorer,
    unseal: Unseal,
) -> ChosenMatches:
    """Chooses the matches of all turns of a conversation. Entries that are chosen count as used."""
    chooser = _Chooser(conversation, sent_turns, store, restorer, unseal)
    chooser.choose()
    return ChosenMatches(chooser.matches, [*reversed(chooser.missing)])


class _Chooser:
    """The choice for one conversation. Turns are numbers in its `sent_turns`."""

    def __init__(
        self,
        conversation: Conversation,
        sent_turns: Sequence[SentTurn],
        store: EntryStore,
        restorer: Restorer,
        unseal: Unseal,
    ) -> None:
        self.matches = [_UNKNOWN] * len(sent_turns)
        self.missing: dict[bytes, None] = {}
        """Keys for which the store may lack the right entry, the first noted first."""
        self._messages = conversation.messages
        self._session = session_digest(conversation.client.session)
        self._sent_turns = sent_turns
        self._store = store
        self._restorer = restorer
        self._unseal = unseal
        self._evidence: dict[int, Evidence] = {}
        """The evidence in the turns that were examined."""

    def choose(self) -> None:
        """Decides all turns, newest first."""
        undecided = len(self._sent_turns)
        while undecided:
            number = undecided - 1
            match = self._decide(number)
            if match.turns:
                match = self._restored(number, match.turns)
            self.matches[number] = match
            if match.turns:
                self._store.get(match.turns[0].entry.mac)  # counts as a use
                undecided = self._follow(number, match.turns[0])
            else:
                self._note_missing(number)
                undecided = number

    def _follow(self, number: int, turn: Turn) -> int:
        """Takes the turns that a turn's entry names, and those that they name. Returns the number
        of turns that are still undecided."""
        for earlier, named in self._named_by(number, turn):
            if named is None:
                self._note_missing(earlier)
                return earlier
            self.matches[earlier] = self._restored(earlier, [named])
        return 0

    def _restored(self, number: int, turns: Sequence[Turn]) -> Match:
        """The match with these turns, if the client did not change its turn."""
        messages = self._restorer.messages(turns[0], self._sent(number))
        if messages is None:
            return _CLIENT
        return Match(Outcome.FOUND, turns, messages)

    def _decide(self, number: int) -> Match:
        """The match of a turn by its own evidence and that of the turns before it, not yet compared
        with what the client sent."""
        key = self._sent_turns[number].key
        if key not in self._store:
            return _UNKNOWN

        evidence = self._evidence_of(number)
        named = self._store.find_marked(key, (*evidence.ids, *evidence.seals))
        marks = evidence.marks(named.entry.marks if named is not None else [], self._unseal)
        if marks:
            return _match_by_marks(named, marks)

        siblings = self._store.find(key, MAX_COMPARED + 1)
        if not siblings:
            return _UNKNOWN
        if evidence.reasoning_digests:
            siblings = [turn for turn in siblings if evidence.fits_reasoning(turn.entry)]
        if not siblings:
            return _CLIENT
        if len(siblings) > MAX_COMPARED:
            return _AMBIGUOUS
        return self._decide_by_session(number, siblings)

    def _decide_by_session(self, number: int, siblings: list[Turn]) -> Match:
        """The match among siblings that fit the turn's own evidence."""
        by_proof: dict[Proof, list[Turn]] = {proof: [] for proof in Proof}
        for turn in siblings:
            by_proof[self._proof_of_session(number, turn)].append(turn)

        proven = by_proof[Proof.SAME]
        left = self._narrow(number, proven or by_proof[Proof.NONE])
        if not left:
            return _AMBIGUOUS
        if proven or self._is_certain(number, left[0]):
            return Match(Outcome.FOUND, left)
        return _AMBIGUOUS

    def _proof_of_session(self, number: int, turn: Turn) -> Proof:
        """What the conversation shows of the session of a turn: the newest evidence in the turns
        before it."""
        for earlier, named in self._named_by(number, turn):
            if named is None:
                break
            proof = self._evidence_of(earlier).proof(named.entry, self._unseal)
            if proof is not Proof.NONE:
                return proof
        return Proof.NONE

    def _narrow(self, number: int, turns: list[Turn]) -> list[Turn]:
        """The turns of the conversation's session, which differ in nothing but the prompt before
        them; empty if others are left, too."""
        if _differ(turns):
            turns = self._narrow_by_reasoning(number, turns)
        if _differ(turns):
            turns = [turn for turn in turns if self._is_of_session(turn)]
        return [] if _differ(turns) else turns

    def _narrow_by_reasoning(self, number: int, turns: list[Turn]) -> list[Turn]:
        """The turns that descend from the newest earlier turn that the client's reasoning decides;
        all, if none is."""
        for earlier in range(number - 1, -1, -1):
            if not self._evidence_of(earlier).reasoning_digests:
                continue
            match = self._decide(earlier)
            if match.turns:
                ancestors = {turn.entry.mac for turn in match.turns}
                return [turn for turn in turns if ancestors & self._ancestors(turn)]
            self.matches[earlier] = match  # stays, where no later turn names this one
        return turns

    def _is_certain(self, number: int, turn: Turn) -> bool:
        """Whether a turn is used that nothing but its visible history speaks for."""
        adds_reasoning = (
            bool(turn.entry.reasoning_digests) and not self._evidence_of(number).reasoning_digests
        )
        if adds_reasoning and not self._is_of_session(turn):
            return False
        if self._store.is_complete(self._sent_turns[number].key):
            return True
        self._note_missing(number)
        return not adds_reasoning

    def _is_of_session(self, turn: Turn) -> bool:
        return turn.entry.context.session == self._session

    def _named_by(self, number: int, turn: Turn) -> Iterator[tuple[int, Turn | None]]:
        """The earlier turns that the prompts of a turn's session restored, newest first, by their
        numbers here; None, at the end, for one that the store lacks."""
        named: Turn | None = turn
        while named is not None and named.entry.context.previous:
            context = named.entry.context
            number = self._number_of(context.previous_key, number)
            named = self._store.get(context.previous)
            if number < 0:
                return
            yield number, named

    def _number_of(self, key: bytes, before: int) -> int:
        """The turn with this key before another one; -1 where there is none."""
        for number in range(before - 1, -1, -1):
            if self._sent_turns[number].key == key:
                return number
        return -1

    def _ancestors(self, turn: Turn) -> set[bytes]:
        """The `mac` of all earlier turns of a turn's session, as far as the store has them."""
        macs: set[bytes] = set()
        ancestor: Turn | None = turn
        while ancestor is not None and ancestor.entry.context.previous:
            mac = ancestor.entry.context.previous
            macs.add(mac)
            ancestor = self._store.get(mac)
        return macs

    def _evidence_of(self, number: int) -> Evidence:
        evidence = self._evidence.get(number)
        if evidence is None:
            evidence = self._evidence[number] = evidence_of(self._sent(number))
        return evidence

    def _sent(self, number: int) -> list[Message]:
        turn = self._sent_turns[number]
        return self._messages[turn.first : turn.end]

    def _note_missing(self, number: int) -> None:
        key = self._sent_turns[number].key
        if not self._store.is_complete(key):
            self.missing[key] = None


def _match_by_marks(named: Turn | None, marks: set[bytes]) -> Match:
    """The match of a turn that ids or seals identify. `named`: the turn that has one of them."""
    if named is None:
        return _UNKNOWN
    if marks <= set(named.entry.marks):
        return Match(Outcome.FOUND, [named])
    return _CLIENT


def _differ(turns: Sequence[Turn]) -> bool:
    """Whether turns differ in more than the prompt before them."""
    return len(turns) > 1 and len({_content(turn.entry) for turn in turns}) > 1


def _content(entry: LedgerEntry) -> tuple[object, ...]:
    """The fields of an entry that its prompt does not make."""
    return (
        entry.ids,
        entry.tail,
        entry.closed,
        entry.in_reasoning,
        entry.prefix,
        entry.calls_as_text,
        entry.context.started,
        entry.context.previous,
    )
