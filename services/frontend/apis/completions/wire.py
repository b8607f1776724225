"""Types of a Completions request."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from services.frontend.apis.shared.sampling_fields import OpenAIFields

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Body(OpenAIFields, kw_only=True):
    """The request. `prompt`: one text, one list of token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None
