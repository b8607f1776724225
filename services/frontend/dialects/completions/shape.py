"""What a Completions request says about the form of the answer."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from schemas.events import TokenLogprob


class Shape(Struct, frozen=True):
    """The form of one answer."""

    echoes: list[str]
    """What stands before the text of each choice; as many as there are choices."""
    prompts: int = 1
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    fingerprint: str | None = None


def token_logprobs(tokens: Sequence[tuple[int, TokenLogprob]]) -> dict[str, Any]:
    """`logprobs` of a choice or chunk; of each token, where in the choice's text it begins. The chosen token is always
    among `top_logprobs`, so there may be one more than was asked for, as natively."""
    return {
        "text_offset": [offset for offset, _ in tokens],
        "token_logprobs": [token.logprob for _, token in tokens],
        "tokens": [token.token for _, token in tokens],
        "top_logprobs": [
            {token.token: token.logprob, **{top.token: top.logprob for top in token.top}} for _, token in tokens
        ],
    }
