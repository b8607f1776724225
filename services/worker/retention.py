"""Limits how much of the KV cache the turns of each tenant may ask an engine to retain. Pure."""

from schemas.frames import GenerateRequest

TENANT_SHARE = 0.25
"""Share of the KV cache that a tenant's retained prompts may take."""
MIN_TOKENS = 1024
"""Tokens that a session counts with at least, which bounds the number of sessions."""


class RetentionQuota:
    """The retained prompts of each tenant, by session: a session's prompts begin alike, so its longest one counts."""

    def __init__(self, kv_tokens: int | None) -> None:
        """`kv_tokens`: the capacity of the cache; None if unknown, then nothing is retained."""
        self._limit = TENANT_SHARE * (kv_tokens or 0)
        self._retained: dict[str, dict[str, tuple[float, int]]] = {}
        """For each session the time at which its retention ends, and its tokens."""

    def seconds(self, request: GenerateRequest, tokens: int, now: float) -> int:
        """Returns for how many seconds the turn's prompt is retained; 0 if that is not requested, or its tenant retains
        too much. `now`: the loop's time."""
        if not request.retain_s:
            return 0
        kept = self._retained.setdefault(request.tenant, {})
        for session in [session for session, (until, _) in kept.items() if until <= now]:
            del kept[session]
        until, most = kept.get(request.session, (now, 0))
        most = max(most, tokens, MIN_TOKENS)
        others = sum(count for session, (_, count) in kept.items() if session != request.session)
        if others + most > self._limit:
            return 0
        kept[request.session] = max(until, now + request.retain_s), most
        return request.retain_s
