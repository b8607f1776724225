"""Routes the turns of one bus with the preprocessors' own router and index, in virtual time. No
processes, no IO.

Clients are of four kinds. Sessions of one kind share the beginning of their prompts, and each has
its own history, which grows with every turn. A session's next turn begins when the last one ends.
"""

import random
import time
from collections import Counter, deque

from msgspec import Struct

from bench.stats import Spread, spread
from schemas.control import Heartbeat, Load
from services.preprocessor.routing.kv_index import KvIndex
from services.preprocessor.routing.router import Router, TurnProfile
from services.tokenization.block_keys import pack, unpack
from services.worker.kv.cached_blocks import CachedBlocks

BLOCK = 32
"""Tokens in a KV block."""
KINDS, SHARED = 4, 16_000 // BLOCK
"""Kinds of clients, and the blocks that sessions of a kind share."""
OWN = (1_000 // BLOCK, 7_000 // BLOCK)
"""Blocks of a session's own history at its first turn."""
GROWTH = 8
"""Blocks that a turn adds."""
TURN_S = 12
"""Virtual seconds of a turn."""
QUEUE = 1024
"""Turns that wait for a slot of a worker. It refuses more."""
TICKS = 10
"""Ticks of a virtual second. In each, a tenth of the processes sends heartbeats."""
KV_BLOCKS = 2_500_000 // BLOCK
"""Blocks of one worker's cache."""


class Shape(Struct, frozen=True):
    """The number of streams of a busy process of each stage."""

    slots: int = 512
    """Slots of a worker. Three quarters of them are used."""
    parser: int = 500
    frontend: int = 1000
    preprocessor: int = 4000

    def counts(self, streams: int) -> dict[str, int]:
        """Returns the processes of each stage for `streams` streams."""
        return {
            "frontend": max(2, -(-streams // self.frontend)),
            "preprocessor": max(2, -(-streams // self.preprocessor)),
            "worker": max(2, -(-streams * 4 // (3 * self.slots))),
            "parser": max(2, -(-streams // self.parser)),
        }


class Placed(Struct, frozen=True):
    """The processes of a stream."""

    worker: int
    parser: int
    frontend: int


class Routing(Struct, frozen=True):
    """The result of a simulation."""

    turns: int
    place_ms: Spread | None
    """CPU to look one prompt up in the index and order the workers."""
    returned: float
    """Share of the last round's turns that went to the worker of the session's previous turn."""
    held: float
    """Share of the last round's prompt tokens that their worker had cached."""
    fullest: float
    """Turns of the fullest worker at the end, divided by the average."""
    keys: int
    """Keys in the index. A block on two workers counts twice."""
    fill_s: float
    """CPU to fill an empty index from the snapshots of all workers, as a starting preprocessor
    does."""
    placed: list[Placed]
    """The processes of each stream at the end."""


class _Session:
    __slots__ = ("kind", "own", "worker")

    def __init__(self, kind: int, own: list[int]) -> None:
        self.kind = kind
        self.own = own
        self.worker = -1


class Bus:
    """One bus: its workers, the index that all preprocessors have, and a router for each
    preprocessor."""

    def __init__(self, streams: int, shape: Shape, seed: int) -> None:
        self._chance = random.Random(seed)
        self._streams = streams
        self._shape = shape
        self.counts = shape.counts(streams)
        self.names = {
            stage: [name(stage, one) for one in range(count)]
            for stage, count in self.counts.items()
        }
        self._caches = [CachedBlocks(KV_BLOCKS) for _ in self.names["worker"]]
        self._running: dict[str, list[int]] = {
            stage: [0] * count for stage, count in self.counts.items()
        }
        self._routers = [Router() for _ in self.names["preprocessor"]]
        self._index = KvIndex()
        self._number = {one: at for at, one in enumerate(self.names["worker"])}
        self._parser_number = {one: at for at, one in enumerate(self.names["parser"])}
        self._shared = [self._keys(SHARED) for _ in range(KINDS)]
        for one, cache in zip(self.names["worker"], self._caches, strict=True):
            for keys in self._shared:  # no worker is new
                cache.use(keys)
                self._index.add(one, keys)
        self._sessions = [
            _Session(n % KINDS, self._keys(self._chance.randint(*OWN))) for n in range(streams)
        ]
        self._placed: list[Placed | None] = [None] * streams
        self._workers = [
            Heartbeat("worker", one, load=Load(0, 0, shape.slots, QUEUE))
            for one in self.names["worker"]
        ]
        self._parsers = [Heartbeat("parser", one) for one in self.names["parser"]]

    def _keys(self, count: int) -> list[int]:
        return [self._chance.getrandbits(64) for _ in range(count)]

    def run(self, rounds: int) -> Routing:
        """Simulates `rounds` turns of every session. The first ones arrive within the length of a
        turn."""
        length = TURN_S * TICKS
        arrivals: deque[list[int]] = deque(
            list(range(at, self._streams, length)) for at in range(length)
        )
        times: list[float] = []
        turns = later = back = 0
        held_tokens = prompt_tokens = 0
        for tick in range(rounds * length):
            self._beat(tick % TICKS)
            arrivals.append(
                arriving := arrivals.popleft()
            )  # the next turn begins when this one ends
            for number in arriving:
                session = self._sessions[number]
                if (placed := self._placed[number]) is not None:
                    self._count(placed, -1)
                    session.own += self._keys(GROWTH)
                keys = [*self._shared[session.kind], *session.own]
                router = self._routers[turns % len(self._routers)]
                began = time.process_time()
                held = {
                    worker: blocks * BLOCK for worker, blocks in self._index.overlaps(keys).items()
                }
                profile = TurnProfile(len(keys) * BLOCK, held)
                order = router.rank_workers(self._workers, avoid=(), late=(), profile=profile)
                times.append((time.process_time() - began) * 1000)
                best = next(one for one in order if self._accepts(one))
                parser = router.choose_parser(self._parsers, late=())
                router.assign(best, parser)
                worker = self._number[best]
                came, went = self._caches[worker].use(keys)
                self._index.remove(best, went)
                self._index.add(best, came)
                if tick >= (rounds - 1) * length:
                    later += 1
                    back += worker == session.worker
                    held_tokens += held.get(best, 0)
                    prompt_tokens += len(keys) * BLOCK
                session.worker = worker
                new = Placed(worker, self._parser_number[parser], number % self.counts["frontend"])
                self._placed[number] = new
                self._count(new, 1)
                turns += 1
        running = self._running["worker"]
        keys_in_all = sum(len(cache.keys()) for cache in self._caches)
        fill_s = self._fill()
        return Routing(
            turns,
            spread(times),
            back / later if later else 0.0,
            held_tokens / prompt_tokens if prompt_tokens else 0.0,
            max(running) / (sum(running) / len(running)),
            keys_in_all,
            fill_s,
            [placed for placed in self._placed if placed is not None],
        )

    def _accepts(self, worker: str) -> bool:
        return self._running["worker"][self._number[worker]] < self._shape.slots + QUEUE

    def _count(self, placed: Placed, change: int) -> None:
        self._running["worker"][placed.worker] += change
        self._running["parser"][placed.parser] += change

    def _beat(self, tick: int) -> None:
        """Sends the heartbeats of a tick to every router."""
        slots = self._shape.slots
        for stage, last in (("worker", self._workers), ("parser", self._parsers)):
            for one in range(tick, len(last), TICKS):
                running = self._running[stage][one]
                load = Load(running, 0, slots, QUEUE) if stage == "worker" else Load(running)
                last[one] = Heartbeat(stage, last[one].id, load=load)  # type: ignore[arg-type]
                for router in self._routers:
                    router.reset(last[one])

    def _fill(self) -> float:
        """Fills an index from the snapshots of a tenth of the workers. Returns the seconds for
        all."""
        some = range(0, len(self._caches), 10)
        index, snapshots = KvIndex(), [pack(self._caches[one].keys()) for one in some]
        began = time.process_time()
        for one, snapshot in zip(some, snapshots, strict=True):
            index.add(self.names["worker"][one], unpack(snapshot))
        return (time.process_time() - began) * len(self._caches) / len(some)


def name(stage: str, number: int) -> str:
    """Makes the id of a process in a pod: the host's name and a random part."""
    host = 0x7D9C5B6F4 + number * 2654435761 % 2**20
    return f"{stage}-{host:x}-{number:05x}-{number * 40503 % 2**24:06x}"


def frames(placed: list[Placed]) -> tuple[int, int]:
    """Returns the token frames and event frames of one step of all engines: one for each worker and
    parser, and one for each parser and frontend."""
    return (
        len({(one.worker, one.parser) for one in placed}),
        len({(one.worker, one.parser, one.frontend) for one in placed}),
    )


def links(placed: list[Placed]) -> dict[str, Counter[int]]:
    """Returns the receivers of each worker's and each parser's frames."""
    return {
        "worker": Counter(worker for worker, _ in {(one.worker, one.parser) for one in placed}),
        "parser": Counter(parser for parser, _ in {(one.parser, one.frontend) for one in placed}),
    }
