"""Decodes images in processes of their own (`image_process`), which the system ends at their
limits."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from services.frontend.media.image_process import LENGTH_BYTES, Facts, Problem
from services.images.image_data import ImageFacts, UnreadableImage
from services.runtime.config.base import MIB
from services.runtime.observability.telemetry import FilteringBoundLogger

PROCESSES = 2
CPU_S = 5
"""Limit of one image. The largest takes one second."""
WALL_S = 30.0
"""Limit of one image that waits for CPUs."""
MEMORY_BYTES = 1024 * MIB
"""Limit of a process. The largest image takes 550 MB."""
_PROGRAM = "services.frontend.media.image_process"
_UNREADABLE = "Could not process image"
_answers = msgspec.json.Decoder(Facts | Problem)


class ImageDecoder:
    """Decodes a few images at a time, in the order in which they come."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        cpu_s: int = CPU_S,
        wall_s: float = WALL_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._processes = [ImageProcess(log, cpu_s, wall_s, memory_bytes) for _ in range(PROCESSES)]
        self._free = asyncio.Semaphore(PROCESSES)

    async def read_facts(self, data: bytes) -> ImageFacts:
        """The facts of an image, after it was decoded once. Raises UnreadableImage."""
        async with self._free:
            process = self._processes.pop()
            try:
                return await process.read_facts(data)
            finally:
                self._processes.append(process)

    async def context(self, _app: object) -> AsyncIterator[None]:
        """Ends the processes with the application. For `Application.cleanup_ctx`."""
        yield
        await self.close()

    async def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            await process.end()


class ImageProcess:
    """A process that decodes one image after another. It starts with the first one, and again after
    one that ended it."""

    def __init__(
        self, log: FilteringBoundLogger, cpu_s: int, wall_s: float, memory_bytes: int
    ) -> None:
        self._log = log
        self._arguments = (str(cpu_s), str(memory_bytes))
        self._wall_s = wall_s
        self._process: asyncio.subprocess.Process | None = None

    async def read_facts(self, data: bytes) -> ImageFacts:
        """Returns the facts of an image; raises UnreadableImage. If the request is cancelled, the
        process ends."""
        line = b""
        try:
            async with asyncio.timeout(self._wall_s):
                line = await self._ask(data)
        except (TimeoutError, OSError):
            pass
        finally:
            if not line:
                await self.end()
        if not line:
            self._log.warning("image.process_ended", bytes=len(data))
            raise UnreadableImage(_UNREADABLE)
        answer: Facts | Problem = _answers.decode(line)
        if isinstance(answer, Problem):
            raise UnreadableImage(answer.problem)
        return answer.facts

    async def end(self) -> None:
        """Ends the process."""
        process = self._process
        self._process = None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _ask(self, data: bytes) -> bytes:
        """Returns the process's answer, a line; empty where the process has ended."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _PROGRAM,
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        images, answers = self._process.stdin, self._process.stdout
        assert images is not None
        assert answers is not None
        images.write(len(data).to_bytes(LENGTH_BYTES, "big"))
        images.write(data)
        await images.drain()
        return await answers.readline()
