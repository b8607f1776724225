"""Bounds of values in requests, for several APIs."""

from typing import Annotated

from msgspec import Meta

MAX_INTEGER = 2**63 - 1
Integer = Annotated[int, Meta(ge=-(2**63), le=MAX_INTEGER)]
"""An integer that fits the bus; every engine's own limits are narrower."""
Limit = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
"""A number of tokens."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
"""A tool's name in OpenAI's APIs."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""What a client attaches to a stored object in OpenAI's APIs."""
