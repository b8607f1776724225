"""Limits how much of the KV cache turns may ask an engine to retain, by tenant and in all. Pure."""

from typing import NamedTuple

from schemas.requests import GenerateRequest

TENANT_SHARE = 0.25
"""Share of the KV cache that a tenant's retained prompts may take."""
TOTAL_SHARE = 0.5
"""Share that those of all tenants may take together: the rest is evicted as without retention."""
MIN_TOKENS = 1024
"""Tokens that a session, or a prompt, counts with at least, which bounds their number."""
SLACK = 256
"""More tokens than a block has: the cache lacks the last block of a prompt, which is not whole."""


class _Retained(NamedTuple):
    """A prompt that is retained."""

    until: float
    """The end of the retention, by the loop's time."""
    tokens: int

    @property
    def counted(self) -> int:
        """The tokens that it counts with."""
        return max(self.tokens, MIN_TOKENS)


class RetentionQuota:
    """The retained prompts of each tenant. A session's prompts begin alike, so its longest one
    counts. A prompt that does not begin with that one, since ids of sessions are what clients
    claim, counts with its new tokens."""

    def __init__(self, kv_tokens: int | None) -> None:
        """`kv_tokens`: the capacity of the cache; None if unknown, then nothing is retained."""
        self._capacity = kv_tokens or 0
        self._retained: dict[tuple[str, str], _Retained] = {}
        """The prompts by tenant and session, or turn with another prompt."""

    def seconds(self, request: GenerateRequest, tokens: int, cached: int, now: float) -> int:
        """Returns for how many seconds the turn's prompt may be retained; 0 if that is not
        requested, or its tenant or all tenants together would retain too much. `tokens`: the
        prompt's; `cached`: those in the cache; `now`: the loop's time."""
        if not request.retain_s:
            return 0
        retained = self._retained_with(request, tokens, cached, now)
        return request.retain_s if self._has_room(retained, request.tenant) else 0

    def record(self, request: GenerateRequest, tokens: int, cached: int, now: float) -> None:
        """Records that the engine retains the turn's prompt. Parameters as of `seconds`."""
        self._retained = self._retained_with(request, tokens, cached, now)

    def _retained_with(
        self, request: GenerateRequest, tokens: int, cached: int, now: float
    ) -> dict[tuple[str, str], _Retained]:
        """Returns the prompts that are retained with the turn's."""
        retained = {name: prompt for name, prompt in self._retained.items() if prompt.until > now}
        name = (request.tenant, request.session)
        earlier = retained.get(name, _Retained(now, 0))
        if cached < earlier.tokens - SLACK:  # another prompt than the session's
            name = (request.tenant, request.turn)
            earlier = _Retained(now, 0)
            tokens -= cached
        until = max(earlier.until, now + request.retain_s)
        return {**retained, name: _Retained(until, max(earlier.tokens, tokens))}

    def _has_room(self, retained: dict[tuple[str, str], _Retained], tenant: str) -> bool:
        """Returns whether a tenant and all together stay within their shares."""
        total = sum(prompt.counted for prompt in retained.values())
        tenants = sum(prompt.counted for name, prompt in retained.items() if name[0] == tenant)
        return tenants <= TENANT_SHARE * self._capacity and total <= TOTAL_SHARE * self._capacity
