"""Chooses the ledger entry of each turn of a conversation among siblings: the right entry, or none.

Siblings are entries with the same visible history, as look-alike sessions, retries and forks have
them. In this order:

1. The newest turn that evidence decides: ids and seals name one entry; else the reasoning that the
   client sent back, the entries of earlier turns that a sibling belongs to, and the session id
   leave one.
2. The turns before it follow from that entry: it names the entry that its own prompt restored last,
   and so on.

Where several different siblings are left, none is chosen. Nor is a lone entry chosen that would add
reasoning which the client did not send, if the client's session is another, or if there may be
siblings that are not in memory.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from schemas.conversation import Conversation, Message, Unseal
from schemas.ledger import LedgerEntry
from schemas.session import session_digest
from services.ledger.chain import Link
from services.ledger.evidence import Evidence, evidence_of
from services.ledger.store import Doubt, EntryStore, StoredEntry

MAX_COMPARED = 256
"""Siblings that are compared where no id or seal names one. If there are more, none is chosen."""

Restore: TypeAlias = Callable[[int, StoredEntry], list[Message] | None]
"""Returns the messages of the turn with this number as the model wrote it; None where the entry has
another turn."""


class Choice:
    """The entries of one conversation. `chosen` has a list for each turn of the model: empty, or
    entries that differ in nothing but the prompt before them."""

    def __init__(
        self,
        store: EntryStore,
        conversation: Conversation,
        links: Sequence[Link],
        unseal: Unseal | None,
    ) -> None:
        self.chosen: list[list[StoredEntry]] = [[] for _ in links]
        self.doubts: list[Doubt] = ["unknown"] * len(links)
        self._restored: dict[int, list[Message]] = {}
        """The messages of turns as the model wrote them, by number."""
        self._missing: dict[bytes, None] = {}
        self._evidence: dict[int, Evidence] = {}
        """The evidence in the turns that were examined, by number."""
        self._store = store
        self._conversation = conversation
        self._links = links
        self._unseal = unseal
        self._session = session_digest(conversation.client.session)

    def choose(self, restore: Restore) -> None:
        """Chooses the entries of all turns, newest first."""
        number = len(self._links) - 1
        while number >= 0:
            found = self._decide(number)
            if found and self._accept(number, found[0], restore):
                self._store.get(found[0].entry.mac)  # counts as a use
                self.chosen[number] = found
                number = self._follow(number, found[0], restore)
            else:
                self._miss(number)
                number -= 1

    @property
    def missing(self) -> list[bytes]:
        """Keys for which the store may lack the right entry, oldest first."""
        return [*reversed(self._missing)]

    def messages(self) -> list[Message]:
        """The conversation's messages. Turns with a chosen entry are as the model wrote them."""
        messages, sent, at = list[Message](), self._conversation.messages, 0
        for number, link in enumerate(self._links):
            messages += sent[at : link.first]
            messages += self._restored.get(number) or sent[link.first : link.end]
            at = link.end
        return messages + sent[at:]

    def _number(self, key: bytes, before: int) -> int:
        """The number of the turn with this key before another one; -1 where there is none."""
        return next(
            (number for number in range(before - 1, -1, -1) if self._links[number].key == key), -1
        )

    def _accept(self, number: int, stored: StoredEntry, restore: Restore) -> bool:
        messages = restore(number, stored)
        if messages is not None:
            self._restored[number] = messages
        return messages is not None

    def _follow(self, number: int, stored: StoredEntry, restore: Restore) -> int:
        """Takes the entries that an entry names, and those that they name. Returns the number of
        the newest turn that is still undecided; -1 if there is none."""
        while (context := stored.entry.context).previous:
            number, before = (
                self._number(context.previous_key, number),
                self._store.get(context.previous),
            )
            if number < 0:
                break
            if before is None:
                self._miss(number)
                return number - 1
            if self._accept(number, before, restore):
                self.chosen[number] = [before]
            else:
                self.doubts[number] = "client"
            stored = before
        return -1

    def _decide(self, number: int) -> list[StoredEntry]:
        """The entries of this turn; several differ in nothing but the prompt before them."""
        key = self._links[number].key
        if key not in self._store:
            return []
        evidence = self._evidence_of(number)
        named = self._store.find_marked(key, (*evidence.ids, *evidence.seals))
        if marks := evidence.marks(named.entry if named is not None else None, self._unseal):
            if named is None:
                return []
            self.doubts[number] = "client"
            return [named] if marks <= set(named.entry.marks) else []
        found = self._store.find(key, MAX_COMPARED + 1)
        if not found:
            return []
        if evidence.thoughts:
            self.doubts[number] = "client"
            found = [stored for stored in found if evidence.fits_reasoning(stored.entry)]
        if not found:
            return []
        self.doubts[number] = "ambiguous"
        if len(found) > MAX_COMPARED:
            return []
        decided = self._by_session(number, found, hidden=not evidence.thoughts)
        if decided:
            self.doubts[number] = "client"
        return decided

    def _by_session(
        self, number: int, found: list[StoredEntry], *, hidden: bool
    ) -> list[StoredEntry]:
        """The siblings of the conversation's session, if that is certain. `hidden`: the client did
        not send the reasoning."""
        lines = [(stored, self._lineage(number, stored)) for stored in found]
        proven = [stored for stored, own in lines if own]
        found = proven or [stored for stored, own in lines if own is None]
        if _differ(found):
            found = self._by_reasoning(number, found)
        if _differ(found):
            found = [stored for stored in found if stored.entry.context.session == self._session]
        if not found or _differ(found):
            return []
        if proven:
            return found
        entry = found[0].entry
        if hidden and entry.thoughts and entry.context.session != self._session:
            return []
        if not self._store.is_complete(self._links[number].key):
            self._miss(number)
            if hidden and entry.thoughts:
                return []
        return found

    def _lineage(self, number: int, stored: StoredEntry) -> bool | None:
        """Whether the earlier turns of an entry's session are this conversation's; None where
        nothing shows it."""
        while (context := stored.entry.context).previous:
            number, before = (
                self._number(context.previous_key, number),
                self._store.get(context.previous),
            )
            if before is None or number < 0:
                return None
            if (
                verdict := self._evidence_of(number).verdict(before.entry, self._unseal)
            ) is not None:
                return verdict
            stored = before
        return None

    def _by_reasoning(self, number: int, found: list[StoredEntry]) -> list[StoredEntry]:
        """The siblings that descend from the newest earlier turn that the client's reasoning
        decides; all, if none is."""
        for earlier in range(number - 1, -1, -1):
            if self._evidence_of(earlier).thoughts and (own := self._decide(earlier)):
                macs = {stored.entry.mac for stored in own}
                return [stored for stored in found if macs & self._ancestors(stored)]
        return found

    def _ancestors(self, stored: StoredEntry | None) -> set[bytes]:
        macs: set[bytes] = set()
        while stored is not None and (before := stored.entry.context.previous):
            macs.add(before)
            stored = self._store.get(before)
        return macs

    def _evidence_of(self, number: int) -> Evidence:
        found = self._evidence.get(number)
        if found is None:
            link = self._links[number]
            found = self._evidence[number] = evidence_of(
                self._conversation.messages[link.first : link.end]
            )
        return found

    def _miss(self, number: int) -> None:
        key = self._links[number].key
        if not self._store.is_complete(key):
            self._missing[key] = None


def _differ(found: Sequence[StoredEntry]) -> bool:
    """Whether the entries differ in more than the prompt before them."""
    return len({_content(stored.entry) for stored in found}) > 1


def _content(entry: LedgerEntry) -> tuple[object, ...]:
    context = entry.context
    return (
        *(
            entry.ids,
            entry.tail,
            entry.closed,
            entry.in_reasoning,
            entry.prefix,
            entry.calls_as_text,
        ),
        *(context.started, context.previous),
    )
