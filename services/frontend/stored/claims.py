"""The claims of replies among frontends: only one request continues a reply.

A claim is a value of the shared bucket, written only over the one that was read.
"""

import msgspec

from schemas.errors import TurnwireError
from services.frontend.peers import Peers
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import Claim, StoredReply, decode_claim
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, digest_key

_WITHDRAWN = b"null"
"""In place of a claim."""


class SharedClaims:
    """The claims in the bucket of a store."""

    def __init__(
        self, store: MemoryStore, bucket: Bucket, peers: Peers, log: FilteringBoundLogger
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._peers = peers
        self._log = log

    async def claim(self, reply: StoredReply, successor: str) -> str:
        """Claims a reply among all frontends. Returns the successor with the claim. Raises
        TurnwireError."""
        key = _claim_key(reply)
        claim = msgspec.json.encode(Claim(successor, self._peers.id))
        while True:
            number, value = await self._bucket.entry(key)
            earlier = decode_claim(value)
            if earlier is not None and await self._holds(earlier, reply.tenant):
                return earlier.successor
            if await self._bucket.replace(key, claim, number):
                return successor

    async def withdraw(self, reply: StoredReply, successor: str) -> None:
        """Withdraws a claim in place: a delete that arrives late would withdraw a later one."""
        key = _claim_key(reply)
        try:
            number, value = await self._bucket.entry(key)
            if decode_claim(value) == Claim(successor, self._peers.id):
                await self._bucket.replace(key, _WITHDRAWN, number)
        except TurnwireError as error:  # another frontend gets `in flight`, and begins a thread
            self._log.warning("stored.not_released", id=reply.id, reason=error.info.message)

    async def _holds(self, claim: Claim, tenant: str | None) -> bool:
        """Whether a claim in the bucket holds. One of this process does not run any more."""
        if claim.owner != self._peers.id and self._peers.is_alive(claim.owner):
            return True
        return await self._store.get(StoredReply, claim.successor, tenant, wait=False) is not None


def _claim_key(reply: StoredReply) -> str:
    return digest_key(reply.tenant, reply.id, "claim")
