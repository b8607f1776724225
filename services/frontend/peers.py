"""The other frontends of a deployment: which of them run, and notices to them."""

from typing_extensions import override

from schemas import subjects
from schemas.notices import FrontendNotice
from services.runtime.process import Process


class Peers:
    """The peers of the only frontend: none."""

    id = ""
    """The name of this frontend on the bus."""

    def living(self) -> list[str]:
        """Returns the ids of the other frontends that run."""
        return []

    def is_alive(self, frontend: str) -> bool:
        """Returns whether this or another frontend runs, so that its turns will end."""
        return True

    def publish(self, notice: FrontendNotice) -> None:
        """Sends a notice to every other frontend."""


NO_PEERS = Peers()
"""For the only frontend."""


class BusPeers(Peers):
    """The other frontends on the bus."""

    def __init__(self, process: Process) -> None:
        self.id = process.id
        self._process = process

    @override
    def living(self) -> list[str]:
        return [frontend.id for frontend in self._process.registry.living("frontend")]

    @override
    def is_alive(self, frontend: str) -> bool:
        """While this process is cut off, it cannot know that another has ended."""
        if frontend == self.id or self._process.cut_off:
            return True
        return self._process.registry.get("frontend", frontend) is not None

    @override
    def publish(self, notice: FrontendNotice) -> None:
        self._process.publish(subjects.frontends(), notice)
