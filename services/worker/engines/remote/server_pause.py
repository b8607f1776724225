"""Tracks whether a server is paused, by this worker or by others.

- While this worker has paused it, turns wait here (`until_resumed`), and a pause of others is not
  noticed.
- While others have paused it, turns are sent, and wait on the server.
- While both have, the worker can take back its own pause and leave the other one.

In each case the server sends nothing, which does not mean that it hangs.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class ServerPause:
    """The pause of one server. To be made on the event loop."""

    def __init__(self) -> None:
        self.is_elsewhere = False
        """Whether others have paused the server, as far as is known."""
        self.is_loading = False
        """Whether the server loads other weights, so that it may not answer."""
        self.ended_at = 0.0
        """The loop's time at which the last pause ended."""
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def is_here(self) -> bool:
        """Whether this worker has paused the server."""
        return not self._resumed.is_set()

    @property
    def explains_silence(self) -> bool:
        """Whether the server sends nothing because it is paused."""
        return self.is_here or self.is_elsewhere

    async def until_resumed(self) -> None:
        """Returns when this worker has not paused the server."""
        await self._resumed.wait()

    def begin(self) -> None:
        """Records that this worker pauses the server."""
        self._resumed.clear()

    def end(self) -> None:
        """Records that this worker has resumed the server, or could not pause it."""
        self._resumed.set()
        self._note_end()

    def observe(self, *, paused: bool) -> None:
        """Records that the server is paused, or that it is not."""
        if self.is_here:
            return  # by this worker, and perhaps by others, too
        was_elsewhere = self.is_elsewhere
        self.is_elsewhere = paused
        if was_elsewhere and not paused:
            self._note_end()

    def _note_end(self) -> None:
        self.ended_at = asyncio.get_running_loop().time()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The context in which the server loads other weights."""
        self.is_loading = True
        try:
            yield
        finally:
            self.is_loading = False
