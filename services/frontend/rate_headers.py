"""How much of a limit is left, in the headers of each API (apis.md A.1, B.1). Pure."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from services.frontend.allowance import Rate, RateApi


def rate_headers(rates: Mapping[str, Rate], api: RateApi, now: float) -> dict[str, str]:
    """Limit, remainder and reset of each rate; none for a rate without a limit. `now` is Unix time in seconds."""
    headers: dict[str, str] = {}
    for name, rate in rates.items():
        if api == "anthropic":
            reset = datetime.fromtimestamp(math.ceil(now + rate.reset_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            values = {"limit": str(rate.limit), "remaining": str(rate.remaining), "reset": reset}
            headers |= {f"anthropic-ratelimit-{name}-{field}": value for field, value in values.items()}
        else:
            values = {"limit": str(rate.limit), "remaining": str(rate.remaining), "reset": duration(rate.reset_s)}
            headers |= {f"x-ratelimit-{field}-{name}": value for field, value in values.items()}
    return headers


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: `250ms`, `1.5s`, `6m0s`."""
    tenths = round(seconds * 10)
    if round(seconds * 1000) < 1000:
        return f"{round(seconds * 1000)}ms"
    if tenths < 600:
        return f"{tenths / 10:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"
