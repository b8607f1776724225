"""Judges whether processes are idle when nothing is to do: whether any has more than others had before the load."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from simulation.world import Running, World

_LATER = Counter({"Subscription._wait_for_msgs": 2, "inbox": 1})
"""What a process makes with its first request and its first call of JetStream, and for the caches of several
workers."""


class IdleStates:
    """What the processes of each stage have when they are idle."""

    def __init__(self, world: World) -> None:
        """To be made while all processes are idle."""
        self._world = world
        self._states: dict[str, Counter[str]] = {}
        for running in world.running.values():
            self._states[running.stage] = self._states.get(running.stage, Counter()) | _state(running)

    def exceeded(self) -> list[str]:
        """Returns what is left in processes."""
        return [
            f"{name} {text}"
            for name, running in self._world.running.items()
            if running.process is not None
            for text in self._left(running)
        ]

    def _left(self, running: Running) -> list[str]:
        process, service = running.process, running.service
        assert process is not None
        left: list[str] = []
        load = service.load()
        if load.running or load.waiting:
            left.append(f"has {load.running} turns at work and {load.waiting} waiting")
        if process.bus.waiting:
            left.append(f"waits for {len(process.bus.waiting)} answers")
        if unacknowledged := service.links().unacknowledged:
            left.append(f"has unacknowledged frames: {unacknowledged}")
        if more := _state(running) - self._states.get(running.stage, _state(running)) - _LATER:
            left.append(f"has more tasks or subscriptions than when it was idle: {dict(more)}")
        left += [f"holds {one}" for one in _held(running.stage, service)]
        own = [one for one in self._world.network.open if one.machine is running.machine]
        if clients := sum(one.get_extra_info("sockname")[1] == running.port for one in own):
            left.append(f"has {clients} connections of clients that are gone")
        return left


def _state(running: Running) -> Counter[str]:
    """The tasks and subscriptions of a process, by name."""
    process = running.process
    found = process.bus._subscriptions if process is not None else []
    # Where there are several workers, preprocessors listen to what their caches hold.
    subjects = [one._subject for one in found if ".kv." not in one._subject]
    own = process.id if process is not None else ""
    subscriptions = Counter("inbox" if one.startswith("_INBOX") else one.replace(own, "ID") for one in subjects)
    return Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running.machine.tasks) + subscriptions


def _held(stage: str, service: Any) -> Sequence[str]:
    """The turns that a stage holds, which its load may not count."""
    if stage == "parser":
        return [f"turn {turn}" for turn in service._shard.turns]
    if stage == "worker":
        return [f"turn {turn}" for turn in service._turns]
    if stage == "preprocessor":
        leads = [f"lead {lead.turn} with {len(lead.followers)} followers" for lead in service._holding._open]
        return [*(f"turn {turn}" for turn in service._turns), *leads]
    return []
