"""The choice in generated histories, short and long."""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from typing_extensions import override

from schemas.conversation import Client, Conversation, Message, Reasoning, Text
from schemas.ledger import LedgerContext, LedgerEntry, PreviousTurn
from schemas.session import session_digest
from services.ledger.lookup.choice import choose
from services.ledger.lookup.match import MatchedHistory, Outcome
from services.ledger.lookup.restore import Restorer
from services.ledger.lookup.store import EntryStore
from services.ledger.turns.chain import Chain, SentTurn
from services.ledger.turns.evidence import id_digests, reasoning_digests
from services.ledger.turns.turn import Turn
from tests.kit.conversations import assistant, user
from tests.kit.every import for_each

SESSIONS = ("", "a", "b")
THOUGHTS = ("", "so", "thus")

HISTORIES = 3000
VERDICTS = "ceafc72688bc4118"
OUTCOMES = {
    Outcome.UNKNOWN: 4550,
    Outcome.FOUND: 2780,
    Outcome.CLIENT: 1684,
    Outcome.AMBIGUOUS: 1401,
}


class AsSent(Restorer):
    """Every turn is as the client sent it."""

    def __init__(self) -> None: ...

    @override
    def messages(self, turn: Turn, sent: list[Message]) -> list[Message]:
        return sent


class History(Struct):
    """A conversation, and the entries of its turns."""

    conversation: Conversation
    chain: Chain
    store: EntryStore

    def matched(self) -> MatchedHistory:
        return choose(self.conversation, self.chain, self.store, AsSent(), lambda seal: None)


def key_of(number: int) -> bytes:
    return b"key %d" % number


def turn_id(number: int, sibling: int) -> str:
    return f"{number:012x}{sibling:012x}"


def history_of(sent: Sequence[Message], session: str = "") -> History:
    messages = [message for answer in sent for message in (user("hi"), answer)]
    conversation = Conversation("m", messages, client=Client(session=session or None))
    turns = [
        SentTurn(2 * number + 1, 2 * number + 2, key_of(number), b"") for number in range(len(sent))
    ]
    return History(conversation, Chain(turns, b""), EntryStore(1 << 30))


def entry(
    number: int,
    sibling: int,
    thought: str,
    *,
    ids: bytes,
    previous: LedgerEntry | None = None,
    session: str = "",
) -> LedgerEntry:
    link: PreviousTurn | None = None
    if previous is not None:
        link = PreviousTurn(previous.mac, previous.key, previous.mac)
    context = LedgerContext(
        b"",
        0,
        b"",
        session=session_digest(session or None),
        previous_turn=link,
    )
    return LedgerEntry(
        "m",
        key_of(number),
        context,
        ids,
        id_digests=id_digests(turn_id(number, sibling), (), ()),
        reasoning_digests=reasoning_digests([thought] if thought else []),
        mac=b"mac %d %d" % (number, sibling),
    )


def random_history(choices: random.Random) -> History:
    """Up to six turns with up to three siblings each, linked at random."""
    length = choices.randrange(1, 7)
    sent: list[Message] = []
    for number in range(length):
        thought = choices.choice(THOUGHTS)
        parts = [Reasoning(thought), Text("Done.")] if thought else [Text("Done.")]
        message = assistant(*parts)
        if choices.random() < 0.1:
            message.ids.append(f"msg_{turn_id(number, choices.randrange(3))}001")
        sent.append(message)

    history = history_of(sent, choices.choice(SESSIONS))
    history.store.shared = choices.random() < 0.3
    entries: list[LedgerEntry] = []
    for number in range(length):
        earlier = [*entries]
        for sibling in range(choices.randrange(4)):
            previous = choices.choice(earlier) if earlier and choices.random() < 0.7 else None
            thought = choices.choice(THOUGHTS)
            entries.append(
                entry(
                    number,
                    sibling,
                    thought,
                    ids=choices.choice((b"ids1", b"ids2")),
                    previous=previous,
                    session=choices.choice(SESSIONS),
                )
            )
    for made in entries:
        if choices.random() < 0.95:
            history.store.add(made)
    return history


def verdict(history: History) -> str:
    """What the choice makes of a history, as text."""
    matched = history.matched()
    lines = [
        f"{match.outcome} {[turn.entry.mac for turn in match.turns]}" for match in matched.matches
    ]
    return "\n".join([*lines, f"{matched.missing}"])


def test_verdicts_are_those_of_plain_recursion() -> None:
    """The digest is that of the verdicts that the rules gave when each turn decided the earlier
    ones again, for each path to them."""
    digest = hashlib.blake2b(digest_size=8)
    outcomes = Counter[Outcome]()
    for seed in range(HISTORIES):
        history = random_history(random.Random(seed))
        digest.update(verdict(history).encode())
        outcomes.update(match.outcome for match in history.matched().matches)
    assert outcomes == OUTCOMES
    assert digest.hexdigest() == VERDICTS


def undecidable(length: int, *, linked: bool = False) -> History:
    """Two siblings of each turn, which differ although their reasoning is equal."""
    answer = assistant(Reasoning("so"), Text("Done."))
    history = history_of([answer] * length)
    last: list[LedgerEntry | None] = [None, None]
    for number in range(length):
        for sibling in range(2):
            previous = last[sibling] if linked else None
            made = entry(number, sibling, "so", ids=b"ids%d" % sibling, previous=previous)
            history.store.add(made)
            last[sibling] = made
    return history


def seconds_of(history: History) -> float:
    start = time.process_time()
    matches = history.matched().matches
    assert {match.outcome for match in matches} == {Outcome.AMBIGUOUS}
    return time.process_time() - start


@for_each([False, True])
def test_time_grows_with_the_length_of_an_undecidable_history(linked: bool) -> None:
    short = min(seconds_of(undecidable(200, linked=linked)) for _ in range(5))
    long = min(seconds_of(undecidable(2000, linked=linked)) for _ in range(3))
    assert long < 40 * short  # ten times as many turns; 100, if it grew with the square


class CountingStore(EntryStore):
    """Counts how often an entry is fetched."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.fetched = 0

    @override
    def get(self, mac: bytes) -> Turn | None:
        self.fetched += 1
        return super().get(mac)


def fetches_to_narrow(length: int) -> int:
    """Entries that are fetched where the client's reasoning decides the first turn only, and two
    siblings of each later one are left, which both follow from it."""
    answers = [assistant(Reasoning("so"), Text("Done.")), *[assistant(Text("Done."))] * length]
    history = history_of(answers)
    store = history.store = CountingStore()
    first = entry(0, 0, "so", ids=b"ids")
    store.add(first)
    last = [first, first]
    for number in range(1, length + 1):
        for sibling in range(2):
            ids = b"ids%d" % sibling
            last[sibling] = entry(number, sibling, "so", ids=ids, previous=last[sibling])
            store.add(last[sibling])
    outcomes = [match.outcome for match in history.matched().matches]
    assert outcomes == [Outcome.FOUND, *[Outcome.AMBIGUOUS] * length]
    return store.fetched


def test_siblings_are_followed_to_a_decided_turn_once() -> None:
    assert fetches_to_narrow(400) < 2.5 * fetches_to_narrow(200)
