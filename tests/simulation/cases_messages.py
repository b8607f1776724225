"""Cases about messages: order, subjects, subscriptions, requests, and the protocol's bytes."""

import asyncio

import nats.errors
import pytest
from nats.aio.msg import Msg

from tests.kit.waiting import eventually
from tests.simulation.nats_places import MAX_PAYLOAD, Place, listen, settle

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


def pub(subject: str, data: bytes, reply: str = "") -> bytes:
    """The operation that publishes a message."""
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n".encode() + data + b"\r\n"


def msg(subject: str, sid: int, data: bytes, reply: str = "") -> bytes:
    """The operation that delivers a message."""
    return (
        f"MSG {subject} {sid} {reply + ' ' if reply else ''}{len(data)}\r\n".encode()
        + data
        + b"\r\n"
    )


def nobody(inbox: str, sid: int, subject: str) -> bytes:
    """The server's answer to a request on a subject without subscribers."""
    status = f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()
    return f"HMSG {inbox} {sid} {len(status)} {len(status)}\r\n".encode() + status + b"\r\n"


# Order and loss.


async def messages_of_a_publisher_keep_their_order_over_all_subjects(at: Place) -> None:
    one, other = await at.wire(), await at.wire()
    await other.ask(b"SUB order.* 1\r\n")
    sent = [(f"order.{number % 3}", b"%d" % number) for number in range(300)]
    for start in range(0, 300, 50):
        one.write(b"".join(pub(*message) for message in sent[start : start + 50]))
    await one.ask()
    assert await other.ask() == b"".join(msg(subject, 1, data) for subject, data in sent)


async def messages_of_two_publishers_keep_the_order_of_each(at: Place) -> None:
    publishers, reader = [await at.wire(), await at.wire()], await at.client()
    received = await listen(reader, "order2.*")
    for number in range(100):
        for name, publisher in enumerate(publishers):
            publisher.write(pub(f"order2.{name}", b"%d" % number))
        if number % 10 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: len(received) == 200)
    for name in range(2):
        assert [int(one.data) for one in received if one.subject == f"order2.{name}"] == list(
            range(100)
        )


async def message_without_a_subscriber_is_lost(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(pub("early", b"1") + b"SUB early 1\r\n" + pub("early", b"2")) == msg(
        "early", 1, b"2"
    )


async def large_messages_arrive_whole(at: Place) -> None:
    one, other = await at.client(), await at.client()
    received = await listen(other, "large")
    sent = [bytes([number]) * (1 << 20) for number in range(8)] + [b"", bytes(MAX_PAYLOAD)]
    for number, data in enumerate(
        sent, 1
    ):  # a server disconnects a reader that is far behind on a busy machine
        await one.publish("large", data)
        await eventually(lambda number=number: len(received) == number)  # type: ignore[misc]
    assert [one.data for one in received] == sent


async def publisher_receives_its_own_messages_unless_echo_is_off(at: Place) -> None:
    loud, quiet = await at.wire(), await at.wire(echo=False)
    assert await loud.ask(b"SUB echo 1\r\n" + pub("echo", b"1")) == msg("echo", 1, b"1")
    assert await quiet.ask(b"SUB echo 1\r\n" + pub("echo", b"2")) == b""
    assert await loud.ask(pub("echo", b"3")) == msg("echo", 1, b"2") + msg("echo", 1, b"3")
    assert await quiet.ask() == msg("echo", 1, b"3")


# Subjects.


async def star_matches_exactly_one_token(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB star.*.end 1\r\n")
    subjects = [
        "star.a.end",
        "star.end",
        "star.a.b.end",
        "star.a.end.b",
        "star.$A-=_.end",
        "star.*.end",
    ]
    received = await wire.ask(b"".join(pub(subject, b"x") for subject in subjects))
    assert received == b"".join(msg(subjects[number], 1, b"x") for number in (0, 4, 5))


async def rest_matches_one_token_or_more(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB rest.> 1\r\nSUB rest.*.> 2\r\n")
    received = await wire.ask(
        pub("rest", b"1") + pub("rest.a", b"2") + pub("resta.b", b"3") + pub("rest.a.b", b"4")
    )
    assert sorted(received.split(b"MSG ")[1:]) == [
        b"rest.a 1 1\r\n2\r\n",
        b"rest.a.b 1 1\r\n4\r\n",
        b"rest.a.b 2 1\r\n4\r\n",
    ]


async def wildcards_match_subjects_that_begin_with_a_dollar_sign(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB *.dollar 1\r\n")
    assert await wire.ask(pub("$X.dollar", b"x")) == msg("$X.dollar", 1, b"x")


async def case_of_a_subject_counts(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(b"SUB Upper 1\r\n" + pub("upper", b"1") + pub("Upper", b"2")) == msg(
        "Upper", 1, b"2"
    )


async def wildcard_characters_inside_a_token_are_ordinary(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB in.a* 1\r\nSUB in.b> 2\r\n")
    received = await wire.ask(
        pub("in.ab", b"1") + pub("in.a*", b"2") + pub("in.b.c", b"3") + pub("in.b>", b"4")
    )
    assert received == msg("in.a*", 1, b"2") + msg("in.b>", 2, b"4")


async def wildcards_in_the_subject_of_a_message_are_ordinary(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB wild.a 1\r\nSUB wild.* 2\r\n")
    assert await wire.ask(pub("wild.*", b"x") + pub("wild.>", b"y")) == msg(
        "wild.*", 2, b"x"
    ) + msg("wild.>", 2, b"y")


async def message_with_an_empty_token_reaches_nobody(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB empty.> 1\r\nSUB answers 2\r\n")
    assert (
        await wire.ask(pub("empty..a", b"x") + pub("empty.a.", b"x") + pub(".empty.a", b"x")) == b""
    )
    assert await wire.ask(pub("empty..a", b"x", "answers")) == nobody("answers", 2, "empty..a")


async def pedantic_client_is_told_of_a_subject_that_is_not_one(at: Place) -> None:
    wire = await at.wire(pedantic=True)
    await wire.ask(b"SUB pedantic.* 1\r\n")
    refusal = b"-ERR 'Invalid Publish Subject'\r\n"
    assert await wire.ask(pub("pedantic..a", b"x")) == refusal
    assert await wire.ask(pub("pedantic.*", b"x")) == refusal + msg("pedantic.*", 1, b"x")


async def subscription_to_an_invalid_subject_is_refused_and_the_connection_stays(at: Place) -> None:
    wire = await at.wire()
    for subject in (b"a..b", b".a", b"a.", b"a.>.b"):
        assert await wire.ask(b"SUB " + subject + b" 1\r\n") == b"-ERR 'Invalid Subject'\r\n"
    assert await wire.ask(b"SUB good 1\r\n" + pub("good", b"x")) == msg("good", 1, b"x")


# Subscriptions.


async def every_matching_subscription_of_a_client_gets_a_copy(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB copy.a 1\r\nSUB copy.* 2\r\nSUB copy.a 3\r\nSUB > 4\r\nSUB copy.b 5\r\n")
    received = await wire.ask(pub("copy.a", b"x"))
    assert sorted(received.split(b"MSG ")[1:]) == [
        b"copy.a %d 1\r\nx\r\n" % sid for sid in (1, 2, 3, 4)
    ]


async def second_subscription_under_one_number_is_ignored(at: Place) -> None:
    wire = await at.wire()
    for again in ("twice.b", "twice.*", "twice.a"):
        assert await wire.ask(f"SUB twice.a 1\r\nSUB {again} 1\r\n".encode()) == b""
        assert await wire.ask(pub("twice.a", b"x") + pub("twice.b", b"y")) == msg(
            "twice.a", 1, b"x"
        )
    assert await wire.ask(b"UNSUB 1\r\n" + pub("twice.a", b"x")) == b""
    assert await wire.ask(b"SUB twice.b 1\r\n" + pub("twice.b", b"y")) == msg("twice.b", 1, b"y")


async def ended_subscription_gets_nothing(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB ended 1\r\nSUB ended 2\r\nSUB ended.* 3\r\n")
    assert await wire.ask(
        b"UNSUB 1\r\nUNSUB 3\r\n" + pub("ended", b"x") + pub("ended.a", b"y")
    ) == msg("ended", 2, b"x")


async def subscription_ends_after_its_number_of_messages(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB few 1\r\nSUB few.* 2\r\nUNSUB 1 2\r\nUNSUB 2 1\r\n")
    received = await wire.ask(
        pub("few", b"1")
        + pub("few.a", b"2")
        + pub("few", b"3")
        + pub("few", b"4")
        + pub("few.b", b"5")
    )
    assert received == msg("few", 1, b"1") + msg("few.a", 2, b"2") + msg("few", 1, b"3")


async def number_of_messages_counts_from_the_subscription(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(b"SUB count 1\r\n" + 2 * pub("count", b"x")) == 2 * msg("count", 1, b"x")
    assert await wire.ask(b"UNSUB 1 3\r\n" + 3 * pub("count", b"y")) == msg("count", 1, b"y")
    assert await wire.ask(
        b"SUB count 1\r\n" + 2 * pub("count", b"x") + b"UNSUB 1 2\r\n" + pub("count", b"y")
    ) == (2 * msg("count", 1, b"x"))
    assert await wire.ask(b"SUB count 1\r\nUNSUB 1 0\r\n" + pub("count", b"z")) == b""


async def subscription_that_does_not_exist_may_be_ended(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(b"UNSUB 99\r\nUNSUB 98 5\r\n") == b""


async def drained_subscription_handles_what_arrived_and_nothing_later(at: Place) -> None:
    one, other = await at.client(), await at.client()
    received: list[bytes] = []
    gate = asyncio.Event()

    async def take(message: Msg) -> None:
        await gate.wait()
        received.append(message.data)

    subscription = await other.subscribe("drain", cb=take)
    await settle(other)
    for number in range(10):
        await one.publish("drain", b"%d" % number)
    await settle(one)
    await settle(other)
    draining = asyncio.ensure_future(subscription.drain())  # type: ignore[no-untyped-call]
    await asyncio.sleep(0.01)
    await settle(other)
    await one.publish("drain", b"late")
    await settle(one)
    gate.set()
    await draining
    assert received == [b"%d" % number for number in range(10)]


async def subscriptions_end_with_their_connection(at: Place) -> None:
    asker = await at.wire()
    await asker.ask(b"SUB answers 1\r\n")
    for abort in (False, True):
        wire = await at.wire()
        await wire.ask(b"SUB gone 1\r\nSUB gone.* 2\r\n")
        assert await asker.ask(pub("gone", b"x", "answers")) == b""
        if abort:
            wire.writer.transport.abort()
        else:
            wire.writer.close()
        await eventually_answers(at, "gone")


async def eventually_answers(at: Place, subject: str) -> None:
    """Waits until a subject has no subscriber."""
    wire = await at.wire()
    await wire.ask(b"SUB probes 1\r\n")
    while await wire.ask(pub(subject, b"", "probes")) != nobody("probes", 1, subject):
        await asyncio.sleep(0.005)


# Requests.


async def request_without_a_subscriber_is_answered_by_the_server(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB answers.* 1\r\nSUB > 2\r\nUNSUB 2\r\n")
    assert await wire.ask(pub("nobody", b"x", "answers.7")) == nobody("answers.7", 1, "nobody")
    client = await at.client()
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("nobody", b"x", timeout=30)


async def answer_of_the_server_needs_the_option_and_a_subscription(at: Place) -> None:
    without, with_option = await at.wire(no_responders=False), await at.wire()
    assert await without.ask(b"SUB silent 1\r\n" + pub("nobody", b"x", "silent")) == b""
    assert await with_option.ask(pub("nobody", b"x", "silent") + pub("nobody", b"x")) == b""
    assert await without.ask() == b"", "only the sender gets it"


async def any_matching_subscription_counts_as_a_responder(at: Place) -> None:
    asker, other = await at.wire(), await at.wire()
    await other.ask(b"SUB served.* 1\r\n")
    await asker.ask(b"SUB answers 1\r\nSUB own 2\r\n")
    assert await asker.ask(pub("served.a", b"x", "answers")) == b""
    assert await asker.ask(pub("own", b"x", "answers")) == msg("own", 2, b"x", "answers")
    deaf = await at.wire(echo=False)
    await deaf.ask(b"SUB answers 1\r\nSUB own2 2\r\n")
    assert await deaf.ask(pub("own2", b"x", "answers")) == nobody("answers", 1, "own2")


async def request_gets_one_answer_and_late_ones_do_no_harm(at: Place) -> None:
    asker, server = await at.client(), await at.client()

    async def answer(message: Msg) -> None:
        await message.respond(b"to " + message.data)
        await message.respond(b"again")

    await server.subscribe("asked", cb=answer)
    waiting = await listen(server, "asked.slowly")
    assert (await asker.request("asked", b"1", timeout=30)).data == b"to 1"
    with pytest.raises(nats.errors.TimeoutError):
        await asker.request("asked.slowly", b"2", timeout=0.05)
    while not waiting:  # on a busy machine the request arrives after its time
        await settle(server)
    await waiting[0].respond(b"late")
    await settle(server)
    assert (await asker.request("asked", b"3", timeout=30)).data == b"to 3"


async def reply_subject_is_passed_on(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB reply 1\r\n")
    assert await wire.ask(pub("reply", b"x", "a.b.c")) == msg("reply", 1, b"x", "a.b.c")
    assert await wire.ask(pub("reply", b"", "r.*")) == msg("reply", 1, b"", "r.*")


# The protocol.


async def payload_may_be_anything(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB any 1\r\n")
    payloads = [
        b"",
        b"\r\n",
        b"\x00\xff",
        b"PUB any 1\r\nx\r\n",
        b"\r\n\r\nPING\r\n.",
        "ü€".encode(),
        b" ",
    ]
    received = await wire.ask(b"".join(pub("any", data) for data in payloads))
    assert received == b"".join(msg("any", 1, data) for data in payloads)


async def operations_may_be_cut_at_any_byte(at: Place) -> None:
    wire = await at.wire()
    head = b"HPUB cut r %d %d\r\n%s" % (len(HEADERS), len(HEADERS) + 2, HEADERS)
    for byte in (
        b"SUB cut 1\r\n" + pub("cut", b"a\r\nb") + head + b"hi\r\nUNSUB 1\r\n" + pub("cut", b"x")
    ):
        wire.write(bytes([byte]))
        await asyncio.sleep(0)
    expected = b"HMSG cut 1 r %d %d\r\n%shi\r\n" % (len(HEADERS), len(HEADERS) + 2, HEADERS)
    assert await wire.ask() == msg("cut", 1, b"a\r\nb") + expected


async def verbs_may_be_in_lower_case_and_fields_apart(at: Place) -> None:
    wire = await at.wire()
    operations = b"sub  spaced   1 \r\nSub\tspaced.b\t2\npub  spaced  2 \r\nhi\r\npuB\tspaced.b\t1\r\nx\r\nping\r\npong\r\n"
    assert await wire.ask(operations) == msg("spaced", 1, b"hi") + msg("spaced.b", 2, b"x")
    assert await wire.until(b"PONG\r\n") == b"PONG\r\n"


async def pings_are_answered_after_what_came_before(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(b"SUB ping 1\r\n" + (pub("ping", b"x") + b"PING\r\n") * 3) == msg(
        "ping", 1, b"x"
    )
    for _ in range(2):
        assert await wire.until(b"PONG\r\n") == msg("ping", 1, b"x") + b"PONG\r\n"
    assert await wire.until(b"PONG\r\n") == b"PONG\r\n"


async def headers_arrive_as_they_were_sent(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    received = await listen(client, "headed")
    await wire.ask(b"SUB headed 1\r\n")
    sizes = b"%d %d\r\n" % (len(HEADERS), len(HEADERS) + 2)
    assert (
        await wire.ask(b"HPUB headed r " + sizes + HEADERS + b"hi\r\n")
        == b"HMSG headed 1 r " + sizes + HEADERS + b"hi\r\n"
    )
    await client.publish("headed", b"", headers={"X": "1", "Y": "a b"})
    await eventually(lambda: len(received) == 2)
    assert [one.headers for one in received] == [{"A": "b"}, {"X": "1", "Y": "a b"}]


async def client_without_headers_gets_the_payload(at: Place) -> None:
    one, old = await at.wire(), await at.wire(headers=False, no_responders=False)
    await old.ask(b"SUB plain 1\r\n")
    sizes = b"%d %d\r\n" % (len(HEADERS), len(HEADERS) + 2)
    await one.ask(b"HPUB plain " + sizes + HEADERS + b"hi\r\n")
    assert await old.ask() == msg("plain", 1, b"hi")
    assert await old.ask(b"HPUB plain " + sizes + HEADERS + b"hi\r\n") == b"<end>"


async def operations_are_acknowledged_if_the_client_is_verbose(at: Place) -> None:
    wire = await at.wire(verbose=True)
    await wire.until(b"+OK\r\n")
    assert await wire.ask(b"SUB loud 1\r\n" + pub("loud", b"x")) == b"+OK\r\n+OK\r\n" + msg(
        "loud", 1, b"x"
    )
    assert await wire.ask(b"UNSUB 1\r\n" + pub("loud", b"x")) == b"+OK\r\n+OK\r\n"


async def server_describes_itself(at: Place) -> None:
    info = (await at.wire()).info
    assert info["max_payload"] == MAX_PAYLOAD
    assert info["headers"] is True
    assert info["jetstream"] is True
    assert info["proto"] == 1
    assert tuple(int(part) for part in info["version"].split(".")) >= (2, 11, 0)
    assert isinstance(info["client_id"], int)
    assert {"server_id", "server_name", "host", "port"} <= set(info)
    assert "connect_urls" not in info
    assert not info.get("auth_required")
    assert not info.get("tls_required")


# Errors.


async def unknown_operation_ends_the_connection_with_an_error(at: Place) -> None:
    for operation in (b"WHAT\r\n", b"PUBX a 1\r\n", b"\r\n", b"PUB\r\n", b"SUB\r\n", b"UNSUB\r\n"):
        wire = await at.wire()
        assert await wire.ask(operation) == b"-ERR 'Unknown Protocol Operation'\r\n<end>", operation


async def malformed_arguments_end_the_connection(at: Place) -> None:
    operations = [
        b"PUB a\r\n",
        b"PUB a x\r\n",
        b"PUB a -1\r\n",
        b"PUB a b c 1\r\n",
        b"SUB a\r\n",
        b"SUB a b c d\r\n",
    ]
    for operation in [*operations, b"HPUB a 14 12\r\n", b"CONNECT {\r\n"]:
        wire = await at.wire()
        assert await wire.ask(operation) == b"<end>", operation


async def message_longer_than_announced_ends_the_connection(at: Place) -> None:
    wire = await at.wire()
    assert (
        await wire.ask(b"SUB long 1\r\nPUB long 1\r\nhi\r\n")
        == b"-ERR 'Unknown Protocol Operation'\r\n<end>"
    )


async def no_responders_without_headers_is_refused(at: Place) -> None:
    wire = await at.wire(headers=False)
    assert await wire.ask() == b"-ERR 'no responders requires headers support'\r\n<end>"


async def payload_over_the_limit_ends_the_connection_with_an_error(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    received = await listen(client, "over")
    assert (
        await wire.ask(b"PUB over %d\r\n" % (MAX_PAYLOAD + 1))
        == b"-ERR 'Maximum Payload Violation'\r\n<end>"
    )
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("over", bytes(MAX_PAYLOAD + 1))
    await client.publish("over", b"small")
    await eventually(lambda: bool(received))
    assert [one.data for one in received] == [b"small"]


async def operation_over_the_limit_ends_the_connection_with_an_error(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(pub("a" * 4000, b"x")) == b""
    assert await wire.ask(pub("a" * 5000, b"x")) == b"-ERR 'maximum control line exceeded'\r\n<end>"


async def error_of_one_client_leaves_the_others(at: Place) -> None:
    wire, other = await at.wire(), await at.client()
    received = await listen(other, "others")
    assert await wire.ask(pub("others", b"1") + b"WHAT\r\n" + pub("others", b"2")) == (
        b"-ERR 'Unknown Protocol Operation'\r\n<end>"
    )
    await other.publish("others", b"3")
    await eventually(lambda: len(received) == 2)
    assert [one.data for one in received] == [b"1", b"3"]
