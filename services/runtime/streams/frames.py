"""Sends and receives frames: the sender within its credit, which the receiver grants.

The worker sends token frames to parser shards, the parser sends event frames to frontends; both use
`FrameSender`, and their receivers `FrameReceiver`. A frame is never
waited for: whatever was scheduled in a tick of the loop is sent at its end, in one frame per
receiver.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import msgspec
from cachetools import FIFOCache, TTLCache

from schemas import subjects
from schemas.control import Credit, Heartbeat, Replay, Stage, StreamPosition
from schemas.errors import TooLarge
from services.runtime.nats.bus import Delivery
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.presence.heartbeats import LinkStates
from services.runtime.process import Process
from services.runtime.streams.links import GENERATION_BITS, ReceiveLink, SendLink, generation

FRAME_BYTES = 128 * 1024
"""The approximate size of a frame. A receiver handles a frame without a break, so this bounds how
long its other messages wait. Even if JSON escapes every character with six, a frame is below any
server's limit."""
INITIAL_WINDOW = 256 * 1024
"""Bytes that may be under way to a receiver before its first heartbeat."""
SEND_AGAIN_S = 0.5
"""Time until the next attempt after a failure to send to a receiver."""
REPLAY_AGAIN_S = 0.5
"""A replay of the same stream is not requested again within this time."""
MAX_REPLAYS = 4096
MAX_FORMER = 256

_decode_credit = msgspec.json.Decoder(Credit).decode
_decode_replay = msgspec.json.Decoder(Replay).decode


class FrameSource(ABC):
    """The content that a `FrameSender` sends: the outboxes of its receivers."""

    @abstractmethod
    def fill(self, receiver: str, seq: int) -> msgspec.Struct | None:
        """Takes the next frame, of about `FRAME_BYTES`, out of a receiver's outbox. None: nothing
        to send, and the number is not used."""

    @abstractmethod
    def credited(self, receiver: str, seq: int) -> None:
        """Notes that everything up to frame `seq` has arrived."""

    @abstractmethod
    def replay(self, request: Replay) -> None:
        """Rewinds the streams that the request names; the sender then sends them again."""

    def take_back(self, receiver: str, frame: msgspec.Struct) -> bool:
        """Takes back a frame that cannot be encoded, and ends the streams that caused it. Returns
        False if there are none."""
        return False


class FrameSender:
    """The sending end of the links to all receivers of one stage."""

    def __init__(
        self,
        process: Process,
        receivers: Literal["parser", "frontend"],
        source: FrameSource,
    ) -> None:
        self._process = process
        self._receivers: Stage = receivers
        self._subject = subjects.tokens if receivers == "parser" else subjects.events
        self._source = source
        self._links: dict[str, SendLink] = {}
        self._generation = 0
        self._scheduled: dict[str, None] = {}
        self._is_due = False
        self.replays = 0

    async def start(self) -> None:
        """Subscribes to credit and replay requests."""
        process = self._process
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        await process.subscribe(subjects.credit(process.stage, process.id), self._credited)
        await process.subscribe(subjects.replay(process.stage, process.id), self._replayed)
        process.on_reconnect.append(self._send_soon)
        counters = {
            "turnwire_stream_replays_total": Reading(
                "Replays requested of this process.", self, "replays"
            )
        }
        process.metrics.register(CountCollector(counters))

    def links(self) -> LinkStates:
        """Returns what the process's heartbeats report."""
        links = self._links.items()
        return LinkStates(
            sent={id: link.seq for id, link in links},
            unacknowledged={id: link.acknowledged for id, link in links if link.unacknowledged},
            replays={id: link.last_replay for id, link in links if link.last_replay},
        )

    def schedule(self, receiver: str) -> None:
        """Sends to this receiver at the end of this tick, or once there is credit."""
        self._scheduled[receiver] = None
        if not self._is_due:
            self._send_soon()

    def is_scheduled(self, receiver: str) -> bool:
        """Returns whether this receiver is scheduled."""
        return receiver in self._scheduled

    def forget(self, receiver: str) -> None:
        """Removes a receiver that has left. A later frame to it starts a new generation; the
        receiver then discards what it had of this sender."""
        if self._links.pop(receiver, None) is not None:
            self._generation += 1
        self._scheduled.pop(receiver, None)

    def _link(self, receiver: str) -> SendLink:
        link = self._links.get(receiver)
        if link is None:
            heartbeat = self._process.registry.get(self._receivers, receiver)
            window = (
                heartbeat.window_bytes if heartbeat and heartbeat.window_bytes else INITIAL_WINDOW
            )
            link = self._links[receiver] = SendLink(
                window, self._generation, self._subject(receiver)
            )
        return link

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        if not self._process.bus.connected:
            return  # all receivers stay scheduled; `on_reconnect` sends
        for receiver in list(self._scheduled):
            try:
                self._send_to(receiver)
            except Exception:
                # One receiver's failure must not affect the others. It is scheduled again here,
                # because its outbox does that only with new output.
                self._scheduled.pop(receiver, None)
                self._process.log.exception("stream.drain_failed", receiver=receiver)
                self._loop.call_later(SEND_AGAIN_S, self._schedule_again, receiver)

    def _schedule_again(self, receiver: str) -> None:
        if receiver in self._links:
            self.schedule(receiver)

    def _send_to(self, receiver: str) -> None:
        link = self._link(receiver)
        while link.open:
            frame = self._source.fill(receiver, link.seq + 1)
            if frame is None:
                del self._scheduled[receiver]
                return
            try:
                data = msgspec.json.encode(frame)
            except Exception:  # any kind: msgspec calls methods of the objects in the frame
                if not self._source.take_back(receiver, frame):
                    raise
                continue
            link.record_sent(len(data))
            try:
                self._process.bus.publish(link.subject, data)
            except TooLarge as error:
                self._process.log.error(
                    "stream.frame_too_large", receiver=receiver, error=str(error)
                )

    def _credited(self, delivery: Delivery) -> None:
        credit = _decode_credit(delivery.data)
        link = self._links.get(credit.receiver)
        if link is None:
            return
        link.credit(credit.seq, credit.window_bytes, credit.replays_requested)
        self._source.credited(credit.receiver, link.delivered)
        if credit.receiver in self._scheduled and link.open:
            self._send_soon()

    def _replayed(self, delivery: Delivery) -> None:
        replay = _decode_replay(delivery.data)
        link = self._links.get(replay.receiver)
        if link is None:
            return
        self.replays += 1
        if link.replay(replay.number):
            # rare: a replay request was lost, and the next one asks for all streams
            replay = msgspec.structs.replace(replay, all=True)
        self._process.log.info(
            "stream.replay",
            receiver=replay.receiver,
            streams=len(replay.streams),
            everything=replay.all,
        )
        self._source.replay(replay)
        self._source.credited(replay.receiver, link.delivered)
        self.schedule(replay.receiver)


class FrameReceiver:
    """The receiving end of the links from all senders of one stage."""

    def __init__(
        self,
        process: Process,
        senders: Stage,
        positions: Callable[[str], list[StreamPosition]],
        *,
        on_given_up: Callable[[str], None],
    ) -> None:
        """
        Args:
            positions: returns this process's positions in all streams of a sender.
            on_given_up: called if a living sender took this process for dead; its streams are
            elsewhere or lost.
        """
        self._process = process
        self._senders: Stage = senders
        self._positions = positions
        self._on_given_up = on_given_up
        self._links: dict[str, ReceiveLink] = {}
        self._former: FIFOCache[str, ReceiveLink] = FIFOCache(MAX_FORMER)
        """The links of senders without heartbeats. If they are alive, they may no longer
        send to this process."""
        self._requested: TTLCache[tuple[ReceiveLink, str], None] = TTLCache(
            MAX_REPLAYS, REPLAY_AGAIN_S
        )
        """Streams with a recent replay request."""
        self.gaps = 0
        counters = {"turnwire_bus_gaps_total": Reading("Holes found in streams.", self, "gaps")}
        process.metrics.register(CountCollector(counters))
        process.registry.on_heartbeat.append(self._heartbeat)
        process.registry.on_leave.append(self._left)

    def opens(self, sender: str, seq: int) -> bool:
        """Returns whether a frame may be handled; False: its sender has since given up the link."""
        link = self._links.get(sender)
        if link is not None and link.generation == seq >> GENERATION_BITS:  # `generation`, inlined
            return True
        return self._link(sender, seq) is not None

    def arrived(self, sender: str, seq: int, size: int) -> None:
        """Records that a frame was handled. Grants credit, and requests a replay if frames before
        it are missing."""
        link = self._links[sender]
        if link.arrived(seq, size):
            # rare: frames are missing before one that arrived
            self._replay_all(sender)
        if link.credit_due:
            self._grant(sender, link)

    def acknowledge(self) -> None:
        """Acknowledges all frames that have arrived, before the process leaves."""
        for sender, link in self._links.items():
            self._grant(sender, link)

    def gap(self, sender: str, position: StreamPosition) -> None:
        """Requests a replay of one stream with a gap, unless one was just requested."""
        key = (self._links[sender], position.turn)
        if key not in self._requested:
            # rare: a stream begins after the position of its receiver
            self._requested[key] = None
            self._request(sender, [position], everything=False)

    def _link(self, sender: str, seq: int) -> ReceiveLink | None:
        """Returns the link that a number belongs to; None if the link has ended."""
        link = self._current_link(sender)
        number = generation(seq)
        if link is not None and number <= link.generation:
            return link if number == link.generation else None
        if link is not None:
            self._given_up(sender)
        self._expect_heartbeats(sender)
        link = self._links[sender] = ReceiveLink(self._process.config.bus.window_bytes, number)
        return link

    def _current_link(self, sender: str) -> ReceiveLink | None:
        if sender in self._former:
            # rare: a sender that was taken for dead sends again
            self._links[sender] = self._former.pop(sender)
            self._expect_heartbeats(sender)
        return self._links.get(sender)

    def _expect_heartbeats(self, sender: str) -> None:
        self._process.registry.expect_heartbeats(
            self._senders, sender, asyncio.get_running_loop().time()
        )

    def _given_up(self, sender: str) -> None:
        self._links.pop(sender, None)
        self._process.log.warning("stream.given_up", sender=sender)
        self._on_given_up(sender)

    def _replay_all(self, sender: str) -> None:
        positions = self._positions(sender)
        for position in positions:
            self._requested[self._links[sender], position.turn] = None
        self._request(sender, positions, everything=True)

    def _request(self, sender: str, positions: list[StreamPosition], *, everything: bool) -> None:
        self.gaps += 1
        number = self._links[sender].request_replay()
        replay = Replay(self._process.id, positions, all=everything, number=number)
        self._process.publish(subjects.replay(self._senders, sender), replay)

    def _grant(self, sender: str, link: ReceiveLink) -> None:
        seq = link.take_credit()
        if seq is not None:
            credit = Credit(self._process.id, seq, link.window, link.replays_requested)
            self._process.publish(subjects.credit(self._senders, sender), credit)

    def _heartbeat(self, peer: Heartbeat) -> None:
        if peer.stage != self._senders:
            return
        me = self._process.id
        seq = peer.sent.get(me)
        if seq is None:
            self._not_named(peer.id)
            return
        link = self._link(peer.id, seq)
        if link is None:
            self._not_named(peer.id)
            return
        lost = link.announced(seq)
        if link.replay_handled(peer.replays.get(me, 0)) or lost:
            # rare: a heartbeat shows that frames or a replay request were lost
            self._replay_all(peer.id)
        link.acknowledged(peer.unacknowledged.get(me))
        self._grant(peer.id, link)

    def _not_named(self, sender: str) -> None:
        """Applies a heartbeat that does not name the link to this process."""
        link = self._current_link(sender)
        if link is not None and link.absent():
            # rare: a sender has no link to this process any more
            self._given_up(sender)

    def _left(self, peer: Heartbeat) -> None:
        if peer.stage != self._senders:
            return
        link = self._links.pop(peer.id, None)
        if link is not None and not peer.leaving:
            self._former[peer.id] = link
