"""Limits how much of the KV cache turns may ask an engine to retain, by tenant and in all. Pure."""

from schemas.frames import GenerateRequest

TENANT_SHARE = 0.25
"""Share of the KV cache that a tenant's retained prompts may take."""
TOTAL_SHARE = 0.5
"""Share that those of all tenants may take together: the rest is evicted as without retention."""
MIN_TOKENS = 1024
"""Tokens that a session, or a prompt, counts with at least, which bounds their number."""
SLACK = 256
"""More tokens than a block has: the cache lacks the last block of a prompt, which is not whole."""


class RetentionQuota:
    """The retained prompts of each tenant. A session's prompts begin alike, so its longest one
    counts. A prompt that does not begin with that one, since ids of sessions are what clients
    claim, counts with its new tokens."""

    def __init__(self, kv_tokens: int | None) -> None:
        """`kv_tokens`: the capacity of the cache; None if unknown, then nothing is retained."""
        self._capacity = kv_tokens or 0
        self._retained: dict[tuple[str, str], tuple[float, int]] = {}
        """The end of the retention, and the tokens, for each tenant and session or turn with
        another prompt."""

    def seconds(self, request: GenerateRequest, tokens: int, held: int, now: float) -> int:
        """Returns for how many seconds the turn's prompt is retained; 0 if that is not requested,
        or its tenant or all tenants together retain too much. `tokens`: the prompt's; `held`: those
        in the cache; `now`: the loop's time."""
        if not request.retain_s:
            return 0
        self._retained = {name: one for name, one in self._retained.items() if one[0] > now}
        name = request.tenant, request.session
        until, most = self._retained.get(name, (now, 0))
        if held < most - SLACK:
            name, until, most, tokens = (request.tenant, request.turn), now, 0, tokens - held
        counts = {one: max(count, MIN_TOKENS) for one, (_, count) in self._retained.items()}
        counts[name] = max(most := max(most, tokens), MIN_TOKENS)
        own = sum(count for (tenant, _), count in counts.items() if tenant == request.tenant)
        if (
            own > TENANT_SHARE * self._capacity
            or sum(counts.values()) > TOTAL_SHARE * self._capacity
        ):
            return 0
        self._retained[name] = max(until, now + request.retain_s), most
        return request.retain_s
