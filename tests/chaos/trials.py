"""Plans trials from a seed, runs each on a deployment, and judges all of its streams."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from tests.chaos.clients import Stream, run_stream
from tests.chaos.deployment import Deployment
from tests.chaos.disturbances import MemoryLimit
from tests.chaos.faults import Disturbance, Effects, Fault, sleep_until
from tests.chaos.judge import VERDICTS, Judgement, Wanted, judge
from tests.chaos.samples import Sampler
from tests.chaos.scripts import write_script
from tests.kit.vision_model import png
from turnwire_tools.clients.answer import APIS

RECOVERY_S = 90.0
"""The default of `--recovery-s`."""
OPEN_S = 120.0
LATE_S = (1.0, 4.0)
"""How long the streams take that are sent during the fault."""
WATCH_S = 5.0
"""Between two samples of memory and files."""
GROUP_TEXT = " ".join(f"Rule {number} holds for all of this group." for number in range(400))
"""Some 5,000 tokens."""
SLACK_S = 45.0
"""For the rest of a stream, beyond the time in which its turn must go on."""


@dataclass(frozen=True)
class Load:
    """The streams of a trial."""

    streams: int = 64
    new: int = 12
    """Requests during the fault, and a few after it."""
    seconds: tuple[float, float] = (4.0, 16.0)
    """How long a stream takes without a fault."""
    delay_ms: tuple[int, int] = (20, 50)
    start_s: float = 1.5
    """Within which all are sent."""
    group: int = 0
    """This number of streams is sent in one moment, with prompts that begin alike; 0: each
    alone."""
    images: int = 0
    """Each stream's question has this number of new images."""
    steady: bool = False
    """Each stream is followed by another, until the fault is over."""


@dataclass(frozen=True)
class Trial:
    """What happens, from its seed alone."""

    seed: str
    instances: int
    faults: tuple[Disturbance, ...]
    load: Load = Load()
    watch: bool = False
    """Memory and open files must stay flat."""

    @property
    def may_tell(self) -> bool:
        """Whether a client may get an error, because its turn cannot continue: both processes with
        its tokens end, its frontend has no memory for it, or its frontend's drain period is over
        while another process is away."""
        if self.may_refuse:
            return True
        faults = [
            fault for fault in self.faults if isinstance(fault, Fault) and fault.action != "stop"
        ]
        ended = {fault.stage for fault in faults}
        return {"worker", "parser"} <= ended or (len(self.faults) > 1 and "frontend" in ended)

    @property
    def may_refuse(self) -> bool:
        """A frontend without memory answers a document with 503, which the client sends again."""
        return any(
            isinstance(fault, MemoryLimit) and fault.stage == "frontend" for fault in self.faults
        )

    @property
    def cell(self) -> str:
        """The row of the table."""
        name = self.faults[0].cell if len(self.faults) == 1 else f"{len(self.faults)} faults"
        return f"{name} × {self.instances}"


@dataclass
class Result:
    """What came of a trial."""

    seed: str
    cell: str
    instances: int
    faults: list[str]
    outage_s: float
    may_tell: bool = False
    """An error event is a right end of a turn."""
    may_refuse: bool = False
    """A turn that runs may be refused."""
    verdicts: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    """Verdicts of the requests that were sent during the fault; not in `verdicts`."""
    refusals: dict[str, int] = field(default_factory=dict)
    """The answers with 503."""
    pause_s: float = 0.0
    silence_s: float = 0.0
    wait_s: float = 0.0
    """The longest of a new request that was not refused."""
    took_s: float = 0.0
    settled: str = ""
    """What was not as it should be after the trial."""
    died: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    """In the logs."""
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        fine = {"whole", "reconnected"} | ({"told"} if self.may_tell else set())
        streams = set(self.verdicts) <= fine | ({"refused"} if self.may_refuse else set()) and set(
            self.new
        ) <= fine | {"refused"}
        return streams and not (self.settled or self.died or self.exceptions)


class Run:
    """Runs trials on one deployment, one after the other."""

    def __init__(self, deployment: Deployment, tokenizer: Tokenizer) -> None:
        self._deployment = deployment
        self._tokenizer = tokenizer

    async def run(self, trial: Trial) -> Result:
        """Sends the streams, injects the faults, waits for every end, and judges."""
        deployment, load, chance = self._deployment, trial.load, Random(trial.seed + " streams")
        deployment.died.clear()
        outage = max((fault.outage_s for fault in trial.faults), default=0.0)
        first = min((fault.at_s for fault in trial.faults), default=0.0)
        last = max((fault.at_s + fault.outage_s for fault in trial.faults), default=5.0)
        effects = Effects(time.monotonic())
        deadline = math.inf
        streams: list[Stream] = []
        sampler = Sampler(deployment.pids, WATCH_S)
        watching = asyncio.create_task(sampler.run())

        async def one(http: aiohttp.ClientSession, number: int, at_s: float) -> None:
            await sleep_until(effects.start + at_s)
            for turn in itertools.count():
                stream = self._stream(trial, number, turn)
                streams.append(stream)
                await run_stream(http, deployment.urls, stream, lambda: deadline)
                judge_early(stream, effects, trial.instances)
                if not load.steady or number >= load.streams or deadline < math.inf:
                    return

        def moment(number: int, first: float, last: float) -> float:
            drawn = Random(f"{trial.seed} group {number // load.group}") if load.group else chance
            return drawn.uniform(first, last)

        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=None)
            ) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(load.streams):
                group.create_task(one(http, number, moment(number, 0.0, load.start_s)))
            await _all_opened(streams, load.streams)
            effects.start = max(effects.start, time.monotonic() - first)
            for number in range(load.streams, load.streams + load.new):
                group.create_task(one(http, number, moment(number, first + 0.2, last + 2)))
            await asyncio.gather(*(fault.inject(deployment, effects) for fault in trial.faults))
            deadline = time.monotonic() + RECOVERY_S + load.seconds[1] + SLACK_S
        faults = list(map(str, trial.faults))
        result = Result(
            trial.seed,
            trial.cell,
            trial.instances,
            faults,
            outage,
            may_tell=trial.may_tell,
            may_refuse=trial.may_refuse,
        )
        judge_all(streams, effects, result)
        result.settled = "; ".join(filter(None, [*effects.complaints, await deployment.settled()]))
        watching.cancel()
        if trial.watch:
            result.settled = "; ".join(filter(None, [result.settled, *sampler.growing()]))
            result.notes += sampler.summary()
        result.died = list(deployment.died)
        result.exceptions = deployment.exceptions()
        if any(isinstance(fault, MemoryLimit) for fault in trial.faults):
            result.exceptions.clear()  # a process without memory says so
        result.took_s = time.monotonic() - effects.start
        return result

    def _stream(self, trial: Trial, number: int, turn: int) -> Stream:
        """The stream that a client sends after `turn` others."""
        load, chance = trial.load, Random(f"{trial.seed} {number} {turn}")
        late = number >= load.streams
        tag = f"s{number}t{turn}w"
        script = write_script(
            chance,
            tag,
            chance.uniform(*(LATE_S if late else load.seconds)),
            chance.randrange(*load.delay_ms),
        )
        tokens = len(self._tokenizer.encode(script.written, add_special_tokens=False).ids) + 1
        wanted = Wanted(APIS[number % 3], number % 8 != 7, script, tokens)
        system = f"Group {number // load.group} of {trial.seed}. {GROUP_TEXT}" if load.group else ""
        images = [
            png(64 + number, 48, f"{trial.seed} {number} {turn} {n}") for n in range(load.images)
        ]
        return Stream(tag, wanted, chance.randrange(8), system, late or turn > 0, images)


async def _all_opened(streams: Sequence[Stream], count: int) -> None:
    """Waits until every stream has begun, so that a fault meets them in progress on a slow machine,
    too."""
    async with asyncio.timeout(OPEN_S):
        while len(streams) < count or any(
            stream.wanted.stream and not stream.begun for stream in streams
        ):
            await asyncio.sleep(0.05)


def judge_early(stream: Stream, effects: Effects, frontends: int) -> None:
    """Judges a stream that is as it should be, so that its bytes need not be kept."""
    found = _judge(stream, effects, frontends)
    if found.verdict == "whole":
        stream.judgement = found
        stream.attempts.clear()


def judge_all(streams: Sequence[Stream], effects: Effects, result: Result) -> None:
    """Judges every stream and writes what came of them."""
    verdicts: Counter[str] = Counter()
    new: Counter[str] = Counter()
    for stream in streams:
        found = stream.judgement or _judge(stream, effects, result.instances)
        (new if stream.new else verdicts)[found.verdict] += 1
        if stream.new:
            if found.verdict == "whole":
                result.wait_s = max(result.wait_s, found.wait_s)
            if found.verdict == "refused":
                result.refusals[found.why] = result.refusals.get(found.why, 0) + 1
        result.pause_s = max(result.pause_s, found.pause_s)
        result.silence_s = max(result.silence_s, found.silence_s)
        if found.verdict not in (
            ("whole", "reconnected", "refused") if stream.new else ("whole", "reconnected")
        ):
            kind = f"{'new ' if stream.new else ''}{stream.wanted.api}{'' if stream.wanted.stream else ' document'}"
            result.notes.append(f"{stream.tag} {kind}: {found.verdict}: {found.why}"[:300])
    result.verdicts, result.new = dict(verdicts), dict(new)


def _judge(stream: Stream, effects: Effects, frontends: int) -> Judgement:
    first = stream.frontend % frontends
    tried = [(first + number) % frontends for number in range(len(stream.attempts))]
    found = judge(
        stream.wanted,
        stream.attempts,
        [effects.frontends.get(number, "serving") for number in tried],
    )
    if found.verdict == "refused" and not stream.new:
        return Judgement("lost", "refused before the fault")
    return found


def as_document(result: Result) -> dict[str, Any]:
    return {**asdict(result), "good": result.good}


def count(results: Sequence[dict[str, Any]], of: str = "verdicts") -> dict[str, int]:
    """Verdicts of several results."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result[of])
    return {verdict: total[verdict] for verdict in VERDICTS}
