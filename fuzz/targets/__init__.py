"""One module per target: `one(data)` runs it, `seeds()` yields its corpus, `mutate` changes an
input."""

from collections.abc import Mapping
from typing import Final

TARGETS: Final[Mapping[str, str]] = {
    "parser": "services.parser",
    "stories": "services.parser",
    "bodies": "services.frontend.apis",
}
"""Each target, and the package that is measured for its coverage."""
