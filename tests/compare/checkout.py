"""Runs a checkout as its users do: `turnwire up` from its own tree, with the script engine and the
demo model.

Nothing of the product is imported here, so that the module layout of the checkout does not matter.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

MODEL = "turnwire-demo"
KEYS = {"alice": "tw-alice-0123456789", "bob": "tw-bob-0123456789"}
"""API keys that the server accepts, by holder."""
START_S = 180.0
STOP_S = 60.0


@dataclass(frozen=True)
class Running:
    """A checkout that answers."""

    url: str
    nats_url: str


@asynccontextmanager
async def running(tree: Path) -> AsyncIterator[Running]:
    """Starts the checkout in `tree` and ends it. Raises RuntimeError, with the end of its log, if
    it does not start."""
    with tempfile.TemporaryDirectory(prefix="turnwire-compare-") as name:
        folder = Path(name)
        ready, log, keys = folder / "ready.json", folder / "log", folder / "keys"
        keys.write_text(
            "".join(
                f"{who}:{hashlib.sha256(key.encode()).hexdigest()}\n" for who, key in KEYS.items()
            )
        )
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
        command = [
            sys.executable,
            "-m",
            "services.cli.main",
            "up",
            *(f"--{k}={v}" for k, v in options.items()),
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=tree,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    while not ready.exists() and process.returncode is None:
                        await asyncio.sleep(0.05)
            if not ready.exists():
                raise RuntimeError(
                    f"{tree} did not start:\n{log.read_text(errors='replace')[-4000:]}"
                )
            facts = json.loads(ready.read_bytes())
            yield Running(facts["url"], facts["nats_url"])
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
