"""Short programs have equal results on nats-server and on the model. The server is the judge: a
program says what is asked, not what is answered."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsPy

from tests.kit.every import Cases
from tests.simulation.cases_messages import pub
from tests.simulation.cases_streams import JSON, call, config, direct, headers_of
from tests.simulation.cases_streams import put as store
from tests.simulation.nats_places import MAX_PAYLOAD, Place, RealServers, Wire, compare, pieces

MESSAGES = r"""
# A publisher receives its own messages, unless echo is off.
b OPTIONS {"echo": false}
a SUB echo 1 / PUB echo 1
b SUB echo 1 / PUB echo 2
a PUB echo 3
b

# A message without a subscriber is lost.
a PUB early 1 / SUB early 1 / PUB early 2

# A star matches exactly one token.
a SUB star.*.end 1
a PUB star.a.end 1 / PUB star.end 2 / PUB star.a.b.end 3 / PUB star.a.end.b 4
a PUB star.$A-=_.end 5 / PUB star.*.end 6

# The rest matches one token or more.
a SUB rest.> 1 / SUB rest.*.> 2
a PUB rest 1 / PUB rest.a 2 / PUB resta.b 3 / PUB rest.a.b 4

# Wildcards match subjects that begin with a dollar sign.
a SUB *.dollar 1 / PUB $X.dollar x

# The case of a subject counts.
a SUB Upper 1 / PUB upper 1 / PUB Upper 2

# Wildcard characters inside a token are ordinary.
a SUB in.a* 1 / SUB in.b> 2
a PUB in.ab 1 / PUB in.a* 2 / PUB in.b.c 3 / PUB in.b> 4

# Wildcards in the subject of a message are ordinary.
a SUB wild.a 1 / SUB wild.* 2 / PUB wild.* x / PUB wild.> y

# A message with an empty token reaches nobody.
a SUB empty.> 1 / SUB answers 2
a PUB empty..a x / PUB empty.a. x / PUB .empty.a x
a PUB empty..a x answers

# A pedantic client is told of a subject that is none.
a OPTIONS {"pedantic": true}
a SUB pedantic.* 1
a PUB pedantic..a x
a PUB pedantic.* x

# A subscription to an invalid subject is refused, and the connection stays.
a SUB a..b 1
a SUB .a 1
a SUB a. 1
a SUB a.>.b 1
a SUB good 1 / PUB good x

# Every matching subscription of a client gets a copy.
a SUB copy.a 1 / SUB copy.* 2 / SUB copy.a 3 / SUB > 4 / SUB copy.b 5
a PUB copy.a x

# A second subscription under one number is ignored.
a SUB twice.a 1 / SUB twice.b 1 / SUB twice.* 1 / SUB twice.a 1
a PUB twice.a x / PUB twice.b y
a UNSUB 1 / PUB twice.a x
a SUB twice.b 1 / PUB twice.b y

# A subscription that was ended gets nothing.
a SUB ended 1 / SUB ended 2 / SUB ended.* 3
a UNSUB 1 / UNSUB 3 / PUB ended x / PUB ended.a y

# A subscription ends after its number of messages.
a SUB few 1 / SUB few.* 2 / UNSUB 1 2 / UNSUB 2 1
a PUB few 1 / PUB few.a 2 / PUB few 3 / PUB few 4 / PUB few.b 5

# That number counts from the subscription.
a SUB count 1 / PUB count x / PUB count x
a UNSUB 1 3 / PUB count y / PUB count y / PUB count y
a SUB count 1 / PUB count x / PUB count x / UNSUB 1 2 / PUB count y
a SUB count 1 / UNSUB 1 0 / PUB count z

# A subscription that does not exist may be ended.
a UNSUB 99 / UNSUB 98 5 / SUB end 1 / PUB end x

# The server answers a request without a subscriber.
a SUB answers.* 1 / SUB > 2 / UNSUB 2
a PUB nobody x answers.7

# It does so for a client with the option and a subscription, and answers that one alone.
a OPTIONS {"no_responders": false}
a SUB silent 1 / PUB nobody x silent
b PUB nobody x silent / PUB nobody x
a
b SUB silent 1 / PUB nobody x silent

# Any matching subscription is a responder, its own ones without echo are not.
b SUB served.* 1
a SUB answers 1 / SUB own 2
a PUB served.a x answers
a PUB own x answers
c OPTIONS {"echo": false}
c SUB answers 1 / SUB own2 2
c PUB own2 x answers

# The reply subject is passed on.
a SUB reply 1
a PUB reply x a.b.c
a PUB reply x r.*

# Verbs may be in lower case, and fields apart.
a sub  spaced   1 / Sub\tspaced.b\t2 / pub  spaced  2 \r\nhi / puB\tspaced.b\t1\r\nx / pong

# Headers arrive as they were sent; a client without headers gets the payload alone.
b OPTIONS {"headers": false, "no_responders": false}
b SUB headed 1
a SUB headed 1
a HPUB headed r 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi
b
b HPUB headed 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi

# Operations are acknowledged if the client is verbose.
a OPTIONS {"verbose": true}
a SUB loud 1 / PUB loud x
a UNSUB 1 / PUB loud x

# An unknown operation ends the connection with an error.
a WHAT
b PUBX a 1
c \r\n
d PUB
e SUB
f UNSUB

# Malformed arguments end the connection.
a PUB a
b PUB a\r\n
c PUB a -1\r\n
d PUB a b c 1\r\n
e SUB a b c d
f HPUB a 14 12\r\n
g CONNECT {

# A message longer than announced ends the connection, also no responders without headers.
a SUB long 1 / PUB long 1\r\nhi
b OPTIONS {"headers": false}
b
"""
"""A program has a title. Each of its lines is a client and the operations that it sends, with a ping
behind them: what it receives up to the answer is the result. `PUB SUBJECT DATA [REPLY]` is written
without the size; a line break in an operation is written as such."""


def programs() -> dict[str, list[str]]:
    """Title → lines."""
    found: dict[str, list[str]] = {}
    for block in MESSAGES.strip().split("\n\n"):
        title, *lines = block.split("\n")
        found[title.removeprefix("# ")] = lines
    return found


def operation(text: str) -> bytes:
    """The bytes of an operation."""
    words = text.split(" ")
    if words[0] == "PUB" and len(words) in (3, 4) and "\\" not in text and words[2].isalnum():
        return pub(words[1], words[2].encode(), *words[3:])
    plain = text.replace("\\r\\n", "\r\n").replace("\\t", "\t")
    return plain.encode() + (b"" if text == "\\r\\n" else b"\r\n")


@pytest.mark.parametrize("first", range(4))
def test_programs_of_messages(server: RealServers, first: int, cases: Cases) -> None:
    """Every fourth of them, each on connections of its own."""
    chosen = [*programs().items()][first::4]
    assert len(chosen) > 5
    for title, lines in chosen:

        async def record(at: Place, lines: list[str] = lines) -> list[object]:
            wires: dict[str, Wire] = {}
            results: list[object] = []
            for line in lines:
                name, _, rest = line.partition(" ")
                if rest.startswith("OPTIONS "):
                    wires[name] = await at.wire(**json.loads(rest.removeprefix("OPTIONS ")))
                    continue
                if name not in wires:
                    wires[name] = await at.wire()
                data = b"".join(operation(one) for one in rest.split(" / ") if one)
                results.append(pieces(await wires[name].ask(data)))
            return results

        with cases.case(title):
            results = compare(server, record)
            assert any(result != [b""] for result in results), "nothing was answered"


# -- streams
# --------------------------------------------------------------------------------------------------

Step = Callable[[NatsPy, str], Awaitable[object]]
STATE = ("messages", "bytes", "first_seq", "last_seq", "consumer_count")
ONE = len("$KV.p00.a") + 30 + 100
"""What a message of 100 bytes under a key of one letter takes in a stream of this name."""
HEADERS = len("NATS/1.0\r\na: b\r\n\r\n")


def lasting(answer: JSON) -> JSON:
    """An answer of JetStream's interface, without times and what depends on the machine."""
    names = ("type", "error", "purged", "success", "seq")
    kept: JSON = {name: answer[name] for name in names if name in answer}
    if "config" in answer:
        kept["config"] = {name: answer["config"][name] for name in config("x")}
    if "state" in answer:
        kept["state"] = [answer["state"][name] for name in STATE]
    return kept


def named(request: JSON, name: str) -> JSON:
    """A request with the stream's name in place of `NAME`."""
    found: JSON = json.loads(json.dumps(request).replace("NAME", name))
    return found


def tell(verb: str, **request: Any) -> Step:
    """A call of JetStream's interface."""

    async def step(client: NatsPy, name: str) -> object:
        return lasting(await call(client, verb, name, named(request, name) if request else b""))

    return step


def make(verb: str = "CREATE", *, of: str = "", like: str = "", **changes: Any) -> Step:
    """Makes or changes a stream. `like`: with the settings of a stream of this name."""

    async def step(client: NatsPy, name: str) -> object:
        asked = config(like or of or name, **named(changes, name))
        return lasting(await call(client, verb, of or name, asked))

    return step


def put(key: str, data: bytes = b"v", **headers: str) -> Step:
    return lambda client, name: store(client, name, key, data, **headers)


def get(key: str = "", **request: Any) -> Step:
    """A direct request."""

    async def step(client: NatsPy, name: str) -> object:
        try:
            message = await direct(client, name, key, **named(request, name))
        except nats.errors.NoRespondersError:
            return "nobody"
        return headers_of(message), message.data

    return step


INFO = tell("INFO")


def swap(key: str, expected: int) -> Step:
    """Stores a value if the last one of this key has the expected number."""
    return put(key, Nats_Expected_Last_Subject_Sequence=str(expected))


STREAMS: dict[str, list[Step]] = {
    "numbers rise over all keys": [
        make(),
        *(put(key) for key in ("a", "b", "a", "c.d", "b")),
        INFO,
    ],
    "only the last value of a key is kept": [
        make(),
        *(put("k", data) for data in (b"1", b"2", b"3")),
        get("k"),
        get(seq=1),
        get(seq=2),
    ],
    "a wildcard finds the newest of all": [
        make(),
        *(put(key, key.encode()) for key in ("a", "b", "c.d", "a", "e.f")),
        *(get(key) for key in ("*", ">", "c.*", "*.f")),
    ],
    "the next message of a subject is found by number": [
        make(),
        *(put(key, key.encode()) for key in ("k.a", "l", "k.b", "k.a")),
        *(get(seq=seq, next_by_subj="$KV.NAME.k.*") for seq in range(6)),
        get(next_by_subj="$KV.NAME.>"),
    ],
    "what is missing": [
        get("k"),
        INFO,
        make(),
        get("k"),
        get(seq=9),
        get(last_by_subj="$KV.NAME.k"),
        get(multi_last=["$KV.NAME.k"], batch=1),
        get(multi_last=[]),
    ],
    "a stream without direct access": [make(allow_direct=False), get("k")],
    "headers are stored": [make(), put("k", b"", KV_Operation="DEL", Other="a b"), get("k")],
    "the size of a message has its headers": [
        make(),
        put("k", bytes(2024)),
        put("k", bytes(2025)),
        put("k", bytes(2024 - HEADERS), a="b"),
        put("k", bytes(2025 - HEADERS), a="b"),
        INFO,
    ],
    "overhead of a file": [make(), put("k", b"12345"), INFO, put("other", b"12345", a="b"), INFO],
    "overhead in memory": [
        make(storage="memory"),
        put("k", b"12345"),
        INFO,
        put("other", b"12345", a="b"),
        INFO,
    ],
    "a full stream drops the oldest by the byte": [
        make(max_bytes=3 * ONE),
        *(put(key, bytes(100)) for key in "abcdb"),
        *(get(key) for key in "abcd"),
        put("e", bytes(101)),
        *(get(key) for key in "abcde"),
    ],
    "a smaller limit drops the oldest at once": [
        make(),
        *(put(key, bytes(100)) for key in "abc"),
        make("UPDATE", max_bytes=2 * ONE),
        put("d", b""),
        get("a"),
    ],
    "made twice, with equal settings only": [make(), make(), make(max_bytes=65_000)],
    "what cannot be made": [
        make(),
        make(of="second", subjects=["$KV.NAME.>"]),
        make(of="third", like="other"),
        make(of="fifth", num_replicas=3),
        make(of="sixth", max_bytes=1 << 40),
    ],
    "what cannot be changed": [
        make(),
        make("UPDATE", storage="memory"),
        make("UPDATE", deny_delete=False),
        make("UPDATE", of="absent3"),
        make("UPDATE", max_msg_size=9000),
        put("k", bytes(8000)),
    ],
    "information counts messages": [make(), INFO, *(put(key) for key in "aba"), INFO],
    "a purge empties a stream, and numbers go on": [
        make(),
        *(put(key) for key in "abc"),
        tell("PURGE", filter="$KV.NAME.a"),
        tell("PURGE"),
        INFO,
        put("a"),
    ],
    "messages of a bucket cannot be deleted": [
        make(),
        put("k"),
        tell("MSG.DELETE", seq=1),
        put("k", Nats_Rollup="all"),
        get("k"),
    ],
    "a value is replaced only if its number is the expected one": [
        make(),
        swap("a", 0),
        put("b"),
        swap("a", 0),
        swap("a", 2),
        swap("a", 1),
        swap("c", 3),
        put("b", Nats_Expected_Last_Sequence="2"),
        put("b", Nats_Expected_Last_Sequence="3"),
    ],
}


@pytest.mark.parametrize("first", range(2))
def test_programs_of_streams(server: RealServers, first: int, cases: Cases) -> None:
    for number, (title, steps) in [*enumerate(STREAMS.items())][first::2]:

        async def record(
            at: Place, steps: list[Step] = steps, name: str = f"p{number:02}"
        ) -> list[object]:
            client = await at.client()
            return [await step(client, name) for step in steps]

        with cases.case(title, number=number):
            assert len(compare(server, record)) == len(steps)


def test_payload_over_the_limit(server: RealServers) -> None:
    async def record(at: Place) -> list[object]:
        return [await (await at.wire()).ask(b"PUB over %d\r\n" % (MAX_PAYLOAD + 1))]

    assert compare(server, record) == [b"-ERR 'Maximum Payload Violation'\r\n<end>"]
