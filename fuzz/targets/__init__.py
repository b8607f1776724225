"""One module per target: `one(data)` runs it, `seeds()` starts its corpus, `mutate` knows its grammar."""

from collections.abc import Mapping
from typing import Final

TARGETS: Final[Mapping[str, str]] = {
    "parser": "services.parser",
    "stories": "services.parser",
    "detokenizer": "services.parser.detokenizer",
    "stop": "services.parser.stop",
    "messages": "services.frontend.dialects",
    "chat": "services.frontend.dialects",
    "responses": "services.frontend.dialects",
}
"""Each target, and the package whose coverage guides it."""
