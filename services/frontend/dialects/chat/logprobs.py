"""Log probabilities as Chat Completions has them."""

from collections.abc import Sequence
from typing import Any

from schemas.events import TokenLogprob, TopLogprob


def content_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice or chunk."""
    return {
        "content": [{**_entry(token), "top_logprobs": [_entry(top) for top in token.top]} for token in tokens],
        "refusal": None,
    }


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    data = token.data or token.token.encode("utf-8", "replace")
    return {"token": token.token, "logprob": token.logprob, "bytes": list(data)}
