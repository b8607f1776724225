"""Reads the rollout in the address of a request.

Harnesses can set a base URL, and often nothing else. So all APIs are also served below
`/rollouts/ID`: the server takes this beginning off, and every handler sees the ordinary path.
"""

import re
from typing import Any

from aiohttp import web
from yarl import URL

from services.rollouts.rollout import ROLLOUT_PREFIX

ROLLOUT_ID: web.RequestKey[str] = web.RequestKey("rollout_id", str)
"""The rollout in the address of a request. Set by the server."""
_ID = rf"{ROLLOUT_PREFIX}[0-9a-f]{{32}}"
_ROLLOUT = re.compile(_ID)
_API_PATH = re.compile(rf"/rollouts/({_ID})(/(?:v1|codex|api)/.*)")
_SECRET = re.compile(rf"({ROLLOUT_PREFIX}[0-9a-f]{{6}})[0-9a-f]{{26}}")


def take_rollout(message: Any) -> tuple[Any, str]:
    """Returns the head of a request (aiohttp's `RawRequestMessage`) without the beginning of its
    path that names a rollout, and the rollout's id; "" where there is none."""
    url = message.url
    match = _API_PATH.fullmatch(url.raw_path_qs)
    if match is None:
        return message, ""
    id, path = match.groups()
    origin = str(url).removesuffix(url.raw_path_qs)  # proxies get whole addresses
    return message._replace(path=path, url=URL(origin + path, encoded=True)), id


def is_rollout(key: str) -> bool:
    """Returns whether a key has the form of a rollout's id."""
    return _ROLLOUT.fullmatch(key) is not None


def mask_rollouts(path: str) -> str:
    """Returns a path for the log, which gets only the first digits of a rollout's id, because the
    id is a key."""
    return _SECRET.sub(r"\1…", path)
