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
| more than `MAX_COMPARED` are left, which differ          | ambiguous                         |
| those that are left are narrowed down (below): they      | ambiguous                         |
| still differ, or one is left that is not certain         |                                   |
| one is left, or several that differ in nothing but the   | found; changed (client) if the    |
| prompt before them                                       | client's turn is not equal        |

Three words: evidence *proves* or refutes a session, siblings are *narrowed down* to those that it
leaves, and a turn is *decided* when it has its match.

Siblings are narrowed down to those of the conversation's session:

1. by their earlier turns, which the evidence in the conversation proves or refutes;
2. if they differ, by the newest earlier turn that the client's reasoning decides;
3. if they differ, by the client's session id.

Siblings differ where the model wrote other tokens, in this turn or in an earlier one of its
session. Sessions that are equal to the token do not, whatever their ids.

A sibling without proof is certain in two cases: it adds no reasoning that the client did not send;
or its session id is the client's, and memory is known to have all siblings.

The turns before a decided one follow from it: its entry names the one that its own prompt restored
last, and so on.
"""

from collections.abc import Iterator, Sequence, Set

from msgspec import Struct

from schemas.conversation import Call, Conversation, Message, Unseal
from schemas.session import session_digest
from services.ledger.lookup.match import Match, MatchedHistory, Outcome
from services.ledger.lookup.restore import Restorer
from services.ledger.lookup.store import EntryStore
from services.ledger.turns.chain import Chain, SentTurn, parts_of
from services.ledger.turns.evidence import Evidence, Proof, evidence_of
from services.ledger.turns.turn import Turn

MAX_COMPARED = 256
"""Siblings that are compared where no id or seal names one. If there are more, none is chosen."""

_UNKNOWN = Match(Outcome.UNKNOWN)
_CLIENT = Match(Outcome.CLIENT)
_AMBIGUOUS = Match(Outcome.AMBIGUOUS)


def choose(
    conversation: Conversation,
    chain: Chain,
    store: EntryStore,
    restorer: Restorer,
    unseal: Unseal,
) -> MatchedHistory:
    """Chooses the matches of all turns of a conversation. Entries that are chosen count as used."""
    history = _SentHistory(conversation, chain.turns, store, unseal)
    chooser = _Chooser(history, restorer)
    chooser.choose()
    missing = [*reversed(chooser.missing)]
    return MatchedHistory(conversation, chain, chooser.matches, missing)


class _SentHistory:
    """The turns of a conversation as its client sent them, by their numbers, oldest first, and what
    the store has of the sessions that they may be of."""

    def __init__(
        self,
        conversation: Conversation,
        sent_turns: Sequence[SentTurn],
        store: EntryStore,
        unseal: Unseal,
    ) -> None:
        self.store = store
        self.unseal = unseal
        self._messages = conversation.messages
        self._session = session_digest(conversation.client.session)
        self._sent_turns = sent_turns
        self._evidence: dict[int, Evidence] = {}
        """The evidence in the turns that were examined."""
        self._proofs: dict[bytes, Proof] = {}
        """The results of `proof_of_session`, by the `mac` of the turn."""
        self._descendants: dict[bytes, bool] = {}
        """The results of `descends_from`, by the `mac` of the turn."""

    def __len__(self) -> int:
        return len(self._sent_turns)

    def key(self, number: int) -> bytes:
        """The key of a turn's entry and its siblings."""
        return self._sent_turns[number].key

    def messages(self, number: int) -> list[Message]:
        """A turn as the client sent it."""
        turn = self._sent_turns[number]
        return self._messages[turn.first : turn.end]

    def evidence(self, number: int) -> Evidence:
        """The evidence in a turn."""
        evidence = self._evidence.get(number)
        if evidence is None:
            evidence = self._evidence[number] = evidence_of(self.messages(number))
        return evidence

    def calls_elsewhere(self, number: int, turn: Turn) -> set[bytes]:
        """The digests of a turn's ids that are in other messages, if the client sent fewer calls
        than the turn has."""
        calls = turn.output.calls if turn.output is not None else []
        if len(calls) < 2:
            return set()
        sent = [part for part in parts_of(self.messages(number)) if isinstance(part, Call)]
        if len(sent) >= len(calls):
            return set()
        missing = set(turn.entry.id_digests) - self.evidence(number).ids
        elsewhere: set[bytes] = set()
        for other in range(len(self)):
            if other != number:
                elsewhere |= missing & self.evidence(other).ids
        return elsewhere

    def is_complete(self, number: int) -> bool:
        """Whether the store is known to have all siblings of a turn."""
        return self.store.is_complete(self.key(number))

    def is_of_session(self, turn: Turn) -> bool:
        """Whether the client's session id is that of the turn."""
        return turn.entry.context.session == self._session

    def ancestors(self, number: int, turn: Turn) -> Iterator[tuple[int, Turn | None]]:
        """The earlier turns of a turn's session, newest first, with their numbers here: each names
        the one that its own prompt restored last. None, at the end, for one that the store
        lacks."""
        descendant: Turn | None = turn
        while descendant is not None:
            previous = descendant.entry.context.previous_turn
            if previous is None:
                return
            number = self._number_of(previous.key, number)
            descendant = self.store.get(previous.mac)
            if number < 0:
                return
            yield number, descendant

    def descends_from(self, number: int, turn: Turn, decided: int, macs: Set[bytes]) -> bool:
        """Whether one of the turns with these `mac`s is an earlier turn of a turn's session.

        `decided`: their number, the newest decided one before `number`. So it is the same for all
        turns between the two, and each of them is followed once.
        """
        known = self._descendants.get(turn.entry.mac)
        if known is not None:
            return known

        descends = False
        walked = [turn.entry.mac]
        for earlier, ancestor in self.ancestors(number, turn):
            if ancestor is None or earlier < decided:
                break
            mac = ancestor.entry.mac
            if earlier == decided:
                descends = mac in macs
                break
            if mac in self._descendants:
                descends = self._descendants[mac]
                break
            walked.append(mac)
        self._descendants.update(dict.fromkeys(walked, descends))
        return descends

    def proof_of_session(self, number: int, turn: Turn) -> Proof:
        """What the conversation shows of the session of a turn: the newest evidence in the turns
        before it."""
        known = self._proofs.get(turn.entry.mac)
        if known is not None:
            return known

        proof = Proof.NONE
        walked = [turn.entry.mac]
        for earlier, ancestor in self.ancestors(number, turn):
            if ancestor is None:
                break
            mac = ancestor.entry.mac
            proof = self.evidence(earlier).proof(ancestor.entry, self.unseal)
            if proof is Proof.NONE and mac in self._proofs:
                proof = self._proofs[mac]
                break
            if proof is not Proof.NONE:
                break
            walked.append(mac)
        self._proofs.update(dict.fromkeys(walked, proof))
        return proof

    def _number_of(self, key: bytes, before: int) -> int:
        """The turn with this key before another one; -1 where there is none."""
        for number in range(before - 1, -1, -1):
            if self._sent_turns[number].key == key:
                return number
        return -1


class _Undecided(Struct, frozen=True):
    """The siblings that fit a turn's own evidence, and differ. The turns before it decide."""

    siblings: list[Turn]
    proven: bool
    """The turns before it prove that they are of the conversation's session."""


class _Chooser:
    """The rules of the choice, applied to one conversation. Each turn is decided once."""

    def __init__(self, history: _SentHistory, restorer: Restorer) -> None:
        self.matches = [_UNKNOWN] * len(history)
        self.missing: dict[bytes, None] = {}
        """Keys for which the store may lack the right entry, the first noted first."""
        self._history = history
        self._store = history.store
        self._restorer = restorer
        self._known: dict[int, Match | _Undecided] = {}
        """The turns that were looked at."""
        self._decided_before: dict[int, int | None] = {0: None}
        """The results of `_newest_decided`."""

    def choose(self) -> None:
        """Decides all turns, newest first."""
        undecided = len(self._history)
        while undecided:
            number = undecided - 1
            match = self._decide(number)
            if match.turns:
                match = self._restored(number, match.turns)
            self.matches[number] = match
            if match.turns:
                self._store.get(match.turns[0].entry.mac)  # counts as a use
                undecided = self._choose_ancestors(number, match.turns[0])
            else:
                self._note_missing(number)
                undecided = number

    def _choose_ancestors(self, number: int, turn: Turn) -> int:
        """Decides the turns before a chosen one, which follow from it. Returns the number of turns
        that are still undecided."""
        for earlier, ancestor in self._history.ancestors(number, turn):
            if ancestor is None:
                self._note_missing(earlier)
                return earlier
            self.matches[earlier] = self._restored(earlier, [ancestor])
        return 0

    def _restored(self, number: int, turns: Sequence[Turn]) -> Match:
        """The match with these turns, if the client did not change its turn."""
        messages = self._restorer.messages(turns[0], self._history.messages(number))
        if messages is None:
            return _CLIENT
        elsewhere = self._history.calls_elsewhere(number, turns[0])
        if not elsewhere:
            return Match(Outcome.FOUND, turns, messages)
        # The client did not leave out equal calls: it sent the beginning of the turn.
        ids = self._history.evidence(number).ids
        beginning = self._store.find_identified(self._history.key(number), ids, elsewhere)
        return self._restored(number, [beginning]) if beginning is not None else _CLIENT

    def _decide(self, number: int) -> Match:
        """The match of a turn by all rules, not yet compared with what the client sent. One without
        turns stays, if no chosen turn descends from this one."""
        match = self._decide_alone(number)
        if isinstance(match, _Undecided):
            siblings = self._narrow_by_earlier_turns(number, match.siblings)
            match = self._known[number] = self._decide_among(number, siblings, match.proven)
        if not match.turns:
            self.matches[number] = match
        return match

    def _decide_alone(self, number: int) -> Match | _Undecided:
        """The match of a turn by the evidence, without the matches of the turns before it; it is
        undecided if it needs them."""
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._decide_by_evidence(number)
        return known

    def _decide_by_evidence(self, number: int) -> Match | _Undecided:
        key = self._history.key(number)
        if key not in self._store:
            return _UNKNOWN
        match = self._decide_by_ids(number)
        if match is not None:
            return match

        siblings = self._store.find(key, MAX_COMPARED + 1)
        if not siblings:
            return _UNKNOWN
        if self._sent_reasoning(number):
            evidence = self._history.evidence(number)
            siblings = [turn for turn in siblings if evidence.fits_reasoning(turn.entry)]
        if not siblings:
            return _CLIENT
        if len(siblings) > MAX_COMPARED and not self._store.are_equal(key):
            return _AMBIGUOUS
        siblings, proven = self._narrow_by_proof(number, siblings)
        if _differ(siblings):
            return _Undecided(siblings, proven)
        return self._decide_among(number, siblings, proven)

    def _decide_by_ids(self, number: int) -> Match | None:
        """The match of a turn by the ids and seals of this server that the client sent; None if it
        sent none."""
        evidence = self._history.evidence(number)
        sent = (*evidence.ids, *evidence.seals)
        identified = self._store.find_identified(self._history.key(number), sent)
        turn_digests = identified.entry.id_digests if identified is not None else []
        digests = evidence.required_digests(turn_digests, self._history.unseal)
        if not digests:
            return None
        if identified is None:
            return _UNKNOWN
        return Match(Outcome.FOUND, [identified]) if digests <= {*turn_digests} else _CLIENT

    def _decide_among(self, number: int, turns: list[Turn], proven: bool) -> Match:
        """The match among turns that differ in nothing but the prompt before them. `proven`: they
        are of the conversation's session."""
        if turns and (proven or self._is_certain(number, turns)):
            return Match(Outcome.FOUND, turns)
        return _AMBIGUOUS

    def _narrow_by_proof(self, number: int, siblings: list[Turn]) -> tuple[list[Turn], bool]:
        """The siblings that the turns before this one prove to be of the conversation's session,
        and True; else those that they do not refute, and False."""
        by_proof: dict[Proof, list[Turn]] = {proof: [] for proof in Proof}
        for turn in siblings:
            by_proof[self._history.proof_of_session(number, turn)].append(turn)
        proven = by_proof[Proof.SAME]
        return proven or by_proof[Proof.NONE], bool(proven)

    def _narrow_by_earlier_turns(self, number: int, siblings: list[Turn]) -> list[Turn]:
        """The siblings of the session of the newest decided turn before this one, or of the
        client's session id, which differ in nothing but the prompt before them; empty if others are
        left, too."""
        decided = self._newest_decided(number)
        if decided is not None:
            macs = {turn.entry.mac for turn in self._decide(decided).turns}
            descends = self._history.descends_from
            siblings = [turn for turn in siblings if descends(number, turn, decided, macs)]
        if _differ(siblings):
            siblings = [turn for turn in siblings if self._history.is_of_session(turn)]
        return [] if _differ(siblings) else siblings

    def _newest_decided(self, number: int) -> int | None:
        """The newest turn before this one that the client's reasoning decides; None, if none is.

        A turn may need this of the turns before it. They are decided from the oldest on, so that
        each finds it known: a call for each turn would be too deep in a long conversation.
        """
        oldest = number
        while oldest not in self._decided_before:
            oldest -= 1
            if self._sent_reasoning(oldest) and _is_found(self._decide_alone(oldest)):
                break
        newest = self._decided_before.get(oldest)
        for earlier in range(oldest, number):
            if self._sent_reasoning(earlier) and self._decide(earlier).turns:
                newest = earlier
            self._decided_before[earlier + 1] = newest
        return newest

    def _sent_reasoning(self, number: int) -> bool:
        """Whether the client sent the reasoning of a turn."""
        return bool(self._history.evidence(number).reasoning_digests)

    def _is_certain(self, number: int, turns: Sequence[Turn]) -> bool:
        """Whether turns are used that nothing but their visible history speaks for. They differ in
        nothing but the prompt before them."""
        has_reasoning = bool(turns[0].entry.reasoning_digests)
        adds_reasoning = has_reasoning and not self._sent_reasoning(number)
        if adds_reasoning and not any(map(self._history.is_of_session, turns)):
            return False
        if self._history.is_complete(number):
            return True
        self._note_missing(number)
        return not adds_reasoning

    def _note_missing(self, number: int) -> None:
        """Notes that the store may lack the right entry of a turn."""
        if not self._history.is_complete(number):
            self.missing[self._history.key(number)] = None


def _is_found(known: Match | _Undecided) -> bool:
    return isinstance(known, Match) and bool(known.turns)


def _differ(turns: Sequence[Turn]) -> bool:
    """Whether turns differ in more than the prompt before them."""
    return len({turn.content for turn in turns}) > 1
