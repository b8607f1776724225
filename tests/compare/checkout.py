"""Runs a checkout as its users do: `turnwire up` from its own tree, with the script engine and the
demo model.

Nothing of the product is imported here, so that the module layout of the checkout does not matter.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.stack import processes

MODEL = "turnwire-demo"
KEYS = {"alice": "tw-alice-0123456789", "bob": "tw-bob-0123456789"}
"""API keys that the server accepts, by holder."""
START_S = 180.0


@asynccontextmanager
async def running(tree: Path) -> AsyncIterator[str]:
    """Starts the checkout in `tree`, yields its URL and ends it. Raises StackFailed."""
    with tempfile.TemporaryDirectory(prefix="turnwire-compare-") as name:
        folder = Path(name)
        ready, keys = folder / "ready.json", folder / "keys"
        digests = {who: hashlib.sha256(key.encode()).hexdigest() for who, key in KEYS.items()}
        keys.write_text("".join(f"{who}:{digest}\n" for who, digest in digests.items()))
        options = {
            "port": 0,
            "engine": "script",
            "script-mode": "request",
            "token-delay-ms": 0,
            "kv-tokens": 200_000_000,
            # whether a turn is in the bucket by the next request depends on time
            "ledger-store-mb": 0,
            "accept-timeout-s": 60,
            "api-keys-file": keys,
            "ready-file": ready,
            "state-dir": folder / "state",
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "services.cli.main", "up", *flags]
        environment = {**os.environ, "PYTHONPATH": str(tree)}

        async def is_ready() -> bool:
            return ready.exists()

        async with processes({"up": command}, is_ready, START_S, env=environment, cwd=tree):
            yield json.loads(ready.read_bytes())["url"]
