"""Limits how much of the KV cache the turns of each tenant may ask an engine to retain. Pure."""

from schemas.frames import GenerateRequest

TENANT_SHARE = 0.25
"""Share of the KV cache that a tenant's retained prompts may take."""
MIN_TOKENS = 1024
"""Tokens that a session, or a prompt, counts with at least, which bounds their number."""
SLACK = 256
"""More tokens than a block has: the cache lacks the last block of a prompt, which is not whole."""


class RetentionQuota:
    """The retained prompts of each tenant. A session's prompts begin alike, so its longest one counts. A prompt that
    does not begin with that one, since ids of sessions are what clients claim, counts with its new tokens."""

    def __init__(self, kv_tokens: int | None) -> None:
        """`kv_tokens`: the capacity of the cache; None if unknown, then nothing is retained."""
        self._limit = TENANT_SHARE * (kv_tokens or 0)
        self._retained: dict[str, dict[str, tuple[float, int]]] = {}
        """For each session, and each turn with another prompt, the time at which its retention ends, and its tokens."""

    def seconds(self, request: GenerateRequest, tokens: int, held: int, now: float) -> int:
        """Returns for how many seconds the turn's prompt is retained; 0 if that is not requested, or its tenant retains
        too much. `tokens`: the prompt's; `held`: those in the cache; `now`: the loop's time."""
        if not request.retain_s:
            return 0
        kept = self._retained.setdefault(request.tenant, {})
        for name in [name for name, (until, _) in kept.items() if until <= now]:
            del kept[name]
        name, (until, most) = request.session, kept.get(request.session, (now, 0))
        if held < most - SLACK:
            name, until, most, tokens = request.turn, now, 0, tokens - held
        most = max(most, tokens)
        counts = [most, *(count for other, (_, count) in kept.items() if other != name)]
        if sum(max(count, MIN_TOKENS) for count in counts) > self._limit:
            return 0
        kept[name] = max(until, now + request.retain_s), most
        return request.retain_s
