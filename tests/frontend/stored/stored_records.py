"""Records for stores."""

import json
from typing import Any

from msgspec import Raw

from services.frontend.stored.record import StoredResponse


def item(id: str, text: str = "x") -> Raw:
    return Raw(json.dumps({"id": id, "type": "message", "role": "user", "content": text}).encode())


def record(id: str, previous: str | None = None, **changes: Any) -> StoredResponse:
    members: dict[str, Any] = {
        "id": id,
        "created": 1000.0,
        "response": Raw(json.dumps({"id": id, "status": "completed"}).encode()),
        "status": "completed",
        "previous": previous,
        "input": [item(f"in_{id}")],
        "output": [item(f"out_{id}")],
    }
    return StoredResponse(**members | changes)
