"""Cases in which a server is killed, restarted or suspended, or a client does not read. Each has a
server of its own."""

import asyncio

import pytest

from schemas.errors import TimedOut, TurnwireError, Unavailable
from tests.kit.waiting import eventually
from tests.simulation.cases_streams import opened
from tests.simulation.nats_places import WRITE_DEADLINE_S, Place, listen, settle

MANY = 40
"""Messages of the largest size that fill every buffer between a server and a client that does not
read, but not the server's limit of 64 MB for one client."""


async def bus_subscribes_again_and_reports_one_reconnect(at: Place) -> None:
    bus = await at.bus()
    received: list[bytes] = []
    await bus.bus.subscribe("kept", lambda delivery: received.append(delivery.data))
    await bus.bus.subscribe("kept.*", lambda delivery: received.append(delivery.data))
    ended = await bus.bus.subscribe("kept", lambda delivery: received.append(b"ended"))
    await ended.stop()
    await at.kill()
    await eventually(lambda: not bus.bus.connected)
    assert not bus.bus.publish("kept", b"while it is down")
    await at.start()
    await eventually(lambda: bus.reconnects == 1)
    other = await at.client()
    for subject, data in (("kept", b"1"), ("kept.a", b"2")):
        await other.publish(subject, data)
    await eventually(lambda: len(received) == 2)
    assert received == [b"1", b"2"]
    assert bus.reconnects == 1
    assert not bus.fatal
    assert len(bus.reasons("bus.disconnected")) == 1


async def messages_in_flight_at_a_kill_are_lost_or_arrive_once(at: Place) -> None:
    sender, reader = await at.bus(), await at.bus()
    received: list[int] = []
    await reader.bus.subscribe("flow", lambda delivery: received.append(int(delivery.data)))
    await reader.bus.flush()
    sent = 0
    for phase in range(2):
        while sent < 300 * (phase + 1):
            sender.bus.publish("flow", b"%d" % sent)
            sent += 1
            if sent % 50 == 0:
                await asyncio.sleep(0)
        if phase == 0:
            await at.kill()
            await at.start()
            await eventually(lambda: sender.reconnects == reader.reconnects == 1)
    await eventually(lambda: bool(received) and received[-1] == sent - 1)
    assert received == sorted(set(received)), "nothing twice, in order"
    assert received[-300:] == list(range(300, 600))


async def suspended_server_delays_messages_and_loses_none(at: Place) -> None:
    bus, other = await at.bus(), await at.client()
    received: list[bytes] = []
    await bus.bus.subscribe("slow", lambda delivery: received.append(delivery.data))
    await bus.bus.flush()
    await at.suspend()
    sent = [b"%d" % number for number in range(200)]
    for data in sent[:100]:
        assert bus.bus.publish("slow", data)
    with pytest.raises(TimedOut):
        await bus.bus.request("slow", sent[100], 0.1)
    for data in sent[101:]:
        await other.publish("other", data)
    assert received == []
    await at.resume()
    await eventually(lambda: len(received) == 101)
    assert received == sent[:101]
    await settle(other)
    assert bus.reconnects == 0


async def client_that_does_not_read_is_disconnected_and_others_are_not(at: Place) -> None:
    one, slow, other = await at.client(), await at.wire(), await at.client()
    received = await listen(other, "flood")
    await slow.ask(b"SUB flood 1\r\n")
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(MANY):
        await one.publish("flood", b"%d " % number + bytes(1 << 20))
        await settle(one)
    await asyncio.sleep(2 * WRITE_DEADLINE_S)
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    rest = await slow.rest()
    assert rest.endswith(b"<end>")
    assert len(rest) < MANY << 20
    assert rest.startswith(b"MSG flood 1 ")
    await eventually(lambda: len(received) == MANY)
    assert [int(message.data.split()[0]) for message in received] == list(range(MANY))
    assert one.is_connected


async def values_in_files_outlive_the_server_and_those_in_memory_do_not(at: Place) -> None:
    bus = await at.bus()
    kept, lost = await opened(bus, "kept"), await opened(bus, "lost", storage="memory")
    await kept.put("k", b"v")
    await lost.put("k", b"v")
    await at.kill()
    await eventually(lambda: not bus.bus.connected)
    with pytest.raises(TurnwireError):
        await kept.get("k")
    with pytest.raises(Unavailable):
        kept.offer("k", b"w")
    await at.start()
    await eventually(lambda: bus.bus.connected)
    assert await kept.get("k") == b"v"
    with pytest.raises(Unavailable):
        await lost.get("k")
    lost = await opened(bus, "lost", storage="memory")
    assert await lost.get("k") is None
    await lost.put("k", b"w")
    assert await lost.get("k") == b"w"
