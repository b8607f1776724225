"""Judges whether processes are idle when nothing is to do: whether any has more than others had
before the load."""

from collections import Counter

from simulation.world import Running, World

LEAVE_S = 10.0
"""How long a process takes to leave that has nothing to do; one that still has something drains for
30 s."""

_LATER = Counter({"Subscription._wait_for_msgs": 2, "inbox": 1})
"""What a process makes with its first request and its first call of JetStream, and for the caches
of several workers."""


class IdleStates:
    """What the processes of each stage have when they are idle."""

    def __init__(self, world: World) -> None:
        """To be made while all processes are idle."""
        self._world = world
        self._states: dict[str, Counter[str]] = {}
        for running in world.running.values():
            self._states[running.stage] = self._states.get(running.stage, Counter()) | _state(
                running
            )

    def exceeded(self) -> list[str]:
        """What is left in processes."""
        return [
            f"{name} {text}"
            for name, running in self._world.running.items()
            if running.process is not None
            for text in self._left(running)
        ]

    def stay(self) -> list[str]:
        """Terminates all processes. Returns those that do not leave at once: they wait for what is
        left in them."""
        world = self._world
        for name, running in world.running.items():
            if running.process is not None:
                world.terminate(name)
        world.run(
            lambda: all(running.process is None for running in world.running.values()), LEAVE_S
        )
        return [
            f"{name} does not leave"
            for name, running in world.running.items()
            if running.process is not None
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
        connections = [
            connection
            for connection in self._world.network.open
            if connection.machine is running.machine
        ]
        if clients := sum(
            connection.get_extra_info("sockname")[1] == running.port for connection in connections
        ):
            left.append(f"has {clients} connections of clients that are gone")
        return left


def _state(running: Running) -> Counter[str]:
    """The tasks and subscriptions of a process, by name."""
    state = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running.machine.tasks)
    if (process := running.process) is not None:
        # Where there are several workers, preprocessors listen to what their caches hold.
        subjects = [subject for subject in process.bus.subjects if ".kv." not in subject]
        state.update(
            "inbox" if subject.startswith("_INBOX") else subject.replace(process.id, "ID")
            for subject in subjects
        )
    return state
