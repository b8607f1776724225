"""Both ends of a hop of frames: the sender that drains its outboxes within credit, the receiver that grants it.

The worker sends token frames to parser shards, the parser sends event frames to frontends; both use `FrameSender`, and
their receivers `FrameReceiver`. Frames are formed by draining, never by waiting: whatever was marked in a tick of the
loop goes out at its end, in one frame per receiver.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from schemas import subjects
from schemas.control import Beat, Credit, Replay, Stage, Standing
from schemas.errors import TooLarge
from services.runtime.bus import Message
from services.runtime.links import ReceiveLink, SendLink, generation
from services.runtime.metrics import CountCollector, register
from services.runtime.process import Process

FRAME_BYTES = 128 * 1024
"""About as much as a frame should hold. A frame is handled in one go, so this is also how long a receiver's other
messages wait; and escaped sixfold, the worst that JSON does to text, it is still under any server's limit."""
INITIAL_WINDOW = 256 * 1024
"""Bytes under way to a receiver whose first beat has not come yet."""
DRAIN_AGAIN_S = 0.5
"""After a failure to drain to a receiver."""
ASK_AGAIN_S = 0.5
"""A stream for which a replay was asked is not asked for again within this time."""

MAX_ASKED = 4096
MAX_FORMER = 256

_decode_credit = msgspec.json.Decoder(Credit).decode
_decode_replay = msgspec.json.Decoder(Replay).decode
_encode = msgspec.json.Encoder().encode

Fill = Callable[[str, int], msgspec.Struct | None]
"""(receiver, seq) → the next frame for it, or None where there is nothing (the number is then not used)."""


class FrameSender:
    """The sending end of the links to all receivers of one stage."""

    def __init__(
        self,
        process: Process,
        receivers: Stage,
        subject: Callable[[str], str],
        fill: Fill,
        *,
        on_credit: Callable[[str, int], None],
        on_replay: Callable[[Replay], None],
        on_unsendable: Callable[[str, msgspec.Struct], bool] | None = None,
    ) -> None:
        """
        Args:
            subject: where a receiver's frames go.
            fill: takes the next frame's worth, some `FRAME_BYTES`, out of a receiver's outbox.
            on_credit: (receiver, seq): everything up to that frame has arrived.
            on_replay: rewinds the streams it names; the sender then drains again.
            on_unsendable: (receiver, frame): takes back what a frame holds that cannot be encoded, and ends the
                streams to blame. False where there is none.
        """
        self._process = process
        self._receivers: Stage = receivers
        self._subject = subject
        self._fill = fill
        self._on_credit = on_credit
        self._on_replay = on_replay
        self._on_unsendable = on_unsendable
        self._links: dict[str, SendLink] = {}
        self._generation = 0
        self._marked: dict[str, None] = {}
        self._scheduled = False
        self.replays = 0

    async def start(self) -> None:
        """Listens for credit and replay requests."""
        process = self._process
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        await process.subscribe(subjects.credit(process.stage, process.id), self._credited)
        await process.subscribe(subjects.replay(process.stage, process.id), self._replayed)
        process.sent = lambda: {receiver: link.seq for receiver, link in self._links.items()}
        process.owed = lambda: {receiver: link.credited for receiver, link in self._links.items() if link.owed}
        process.replays = lambda: {receiver: link.heeded for receiver, link in self._links.items() if link.heeded}
        process.on_reconnect.append(self.schedule)
        counters = {"turnwire_stream_replays_total": ("Replays asked of this process.", lambda: self.replays)}
        register(process.metrics, CountCollector(counters))

    def mark(self, receiver: str) -> None:
        """There is something for this receiver: it goes out at the end of this tick, or once there is credit."""
        self._marked[receiver] = None
        if not self._scheduled:
            self.schedule()

    def marked(self, receiver: str) -> bool:
        """Whether something waits for this receiver already, for the end of this tick or for credit."""
        return receiver in self._marked

    def schedule(self) -> None:
        """Drains at the end of this tick."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._drain)

    def forget(self, receiver: str) -> None:
        """The receiver is gone. Should it be sent to again, it was not: the new link tells it of its mistake."""
        if self._links.pop(receiver, None) is not None:
            self._generation += 1
        self._marked.pop(receiver, None)

    def _link(self, receiver: str) -> SendLink:
        link = self._links.get(receiver)
        if link is None:
            beat = self._process.registry.get(self._receivers, receiver)
            window = beat.window if beat and beat.window else INITIAL_WINDOW
            link = self._links[receiver] = SendLink(window, self._generation)
        return link

    def _drain(self) -> None:
        self._scheduled = False
        if not self._process.bus.connected:
            return  # all marks are kept; `on_reconnect` drains
        for receiver in list(self._marked):
            try:
                self._drain_to(receiver)
            except Exception:
                # One receiver's trouble must not become the others'; and its own streams must not wait for a mark,
                # which may only come with the first that has something to say.
                self._marked.pop(receiver, None)
                self._process.log.exception("stream.drain_failed", receiver=receiver)
                self._loop.call_later(DRAIN_AGAIN_S, self._mark_again, receiver)

    def _mark_again(self, receiver: str) -> None:
        if receiver in self._links:
            self.mark(receiver)

    def _drain_to(self, receiver: str) -> None:
        link = self._link(receiver)
        while link.open:
            frame = self._fill(receiver, link.seq + 1)
            if frame is None:
                del self._marked[receiver]
                return
            try:
                data = _encode(frame)
            except Exception:
                if self._on_unsendable is None or not self._on_unsendable(receiver, frame):
                    raise
                continue
            link.sent(len(data))
            try:
                self._process.bus.publish(self._subject(receiver), data)
            except TooLarge as error:
                self._process.log.error("stream.frame_too_large", receiver=receiver, error=str(error))

    def _credited(self, message: Message) -> None:
        credit = _decode_credit(message.data)
        link = self._links.get(credit.receiver)
        if link is None:
            return
        link.credit(credit.seq, credit.window, credit.asked)
        self._on_credit(credit.receiver, link.delivered)
        if credit.receiver in self._marked and link.open:
            self.schedule()

    def _replayed(self, message: Message) -> None:
        replay = _decode_replay(message.data)
        link = self._links.get(replay.receiver)
        if link is None:
            return
        self.replays += 1
        if link.heed(replay.number):
            replay = msgspec.structs.replace(replay, all=True)
        self._process.log.info(
            "stream.replay", receiver=replay.receiver, streams=len(replay.streams), everything=replay.all
        )
        self._on_replay(replay)
        self._on_credit(replay.receiver, link.delivered)
        self.mark(replay.receiver)


class FrameReceiver:
    """The receiving end of the links from all senders of one stage."""

    def __init__(
        self,
        process: Process,
        senders: Stage,
        standings: Callable[[str], list[Standing]],
        *,
        on_given_up: Callable[[str], None],
    ) -> None:
        """
        Args:
            standings: where this process stands in every stream that comes from a sender.
            on_given_up: a living sender took this process for dead; what it had for it is elsewhere or gone.
        """
        self._process = process
        self._senders: Stage = senders
        self._standings = standings
        self._on_given_up = on_given_up
        self._links: dict[str, ReceiveLink] = {}
        self._former: OrderedDict[str, ReceiveLink] = OrderedDict()
        """Of senders that fell silent: should they be alive after all, it counts whether they gave this process up."""
        self._asked: dict[tuple[str, str], float] = {}
        self.gaps = 0
        counters = {"turnwire_bus_gaps_total": ("Holes found in streams.", lambda: self.gaps)}
        register(process.metrics, CountCollector(counters))
        process.registry.on_beat(self._beaten)
        process.registry.on_leave(self._left)

    def opens(self, sender: str, seq: int) -> bool:
        """Whether a frame may be handled; False for one of a link that its sender has given up since."""
        link = self._links.get(sender)
        return (link is not None and link.generation == generation(seq)) or self._link(sender, seq) is not None

    def arrived(self, sender: str, seq: int, size: int) -> None:
        """A frame was handled. Grants credit, and asks for a replay where frames before it are missing."""
        link = self._links[sender]
        if link.arrived(seq, size):
            self._replay_all(sender)
        if link.credit_due():
            self._grant(sender, link)

    def gap(self, sender: str, standing: Standing) -> None:
        """One stream has a hole: ask for it, unless that was just done."""
        now = asyncio.get_running_loop().time()
        key = (sender, standing.turn)
        if now - self._asked.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
            return
        self._remember({key: now})
        self._ask(sender, [standing], everything=False)

    def _link(self, sender: str, seq: int) -> ReceiveLink | None:
        """The link to which a number belongs; None where that is a thing of the past."""
        link = self._known(sender)
        number = generation(seq)
        if link is not None and number <= link.generation:
            return link if number == link.generation else None
        if link is not None:
            self._given_up(sender)
        self._process.registry.expect(self._senders, sender, asyncio.get_running_loop().time())
        link = self._links[sender] = ReceiveLink(self._process.config.bus.window_bytes, number)
        return link

    def _known(self, sender: str) -> ReceiveLink | None:
        if sender in self._former:
            self._links[sender] = self._former.pop(sender)
            self._process.registry.expect(self._senders, sender, asyncio.get_running_loop().time())
        return self._links.get(sender)

    def _given_up(self, sender: str) -> None:
        self._forget(sender)
        self._process.log.warning("stream.given_up", sender=sender)
        self._on_given_up(sender)

    def _replay_all(self, sender: str) -> None:
        standings = self._standings(sender)
        now = asyncio.get_running_loop().time()
        self._remember({(sender, standing.turn): now for standing in standings})
        self._ask(sender, standings, everything=True)

    def _remember(self, asked: dict[tuple[str, str], float]) -> None:
        if len(self._asked) > MAX_ASKED:
            recent = asyncio.get_running_loop().time() - ASK_AGAIN_S
            self._asked = {key: at for key, at in self._asked.items() if at > recent}
        self._asked.update(asked)

    def _ask(self, sender: str, standings: list[Standing], *, everything: bool) -> None:
        self.gaps += 1
        replay = Replay(self._process.id, standings, all=everything, number=self._links[sender].ask())
        self._process.publish(subjects.replay(self._senders, sender), replay)

    def _grant(self, sender: str, link: ReceiveLink) -> None:
        seq = link.take_credit()
        if seq is not None:
            credit = Credit(self._process.id, seq, link.window, link.asked)
            self._process.publish(subjects.credit(self._senders, sender), credit)

    def _beaten(self, beat: Beat) -> None:
        if beat.stage != self._senders:
            return
        seq = beat.sent.get(self._process.id)
        link = self._known(beat.id) if seq is None else self._link(beat.id, seq)
        if seq is None or link is None:
            link = self._links.get(beat.id)
            if link is not None and link.unnamed():
                self._given_up(beat.id)
            return
        lost = link.announced(seq)
        if link.heeded(beat.replays.get(self._process.id, 0)) or lost:
            self._replay_all(beat.id)
        link.owed(beat.owed.get(self._process.id))
        self._grant(beat.id, link)

    def _left(self, beat: Beat) -> None:
        if beat.stage != self._senders:
            return
        link = self._forget(beat.id)
        if link is not None and not beat.leaving:
            self._former[beat.id] = link
            while len(self._former) > MAX_FORMER:
                self._former.popitem(last=False)

    def _forget(self, sender: str) -> ReceiveLink | None:
        self._asked = {key: at for key, at in self._asked.items() if key[0] != sender}
        return self._links.pop(sender, None)
