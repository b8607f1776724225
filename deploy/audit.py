"""Tries forbidden actions on a running bus, as each of its users, and reports those that were not
refused.

    python3 deploy/audit.py nats://127.0.0.1:4222 SECRETS_DIR [--ca FILE] [--cert FILE --key FILE]

SECRETS_DIR is the directory of `turnwire secrets`. Ends with status 0 if everything was refused.
The messages are harmless if the permissions hold; the services count a few refused heartbeats.
Needs nats-py.
"""

import argparse
import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

STAGES = ("frontend", "preprocessor", "worker", "parser")
USERS = (*STAGES, "setup", "tap")
BUCKETS = ("KV_tw_ledger", "KV_tw_responses", "KV_tw_media", "KV_tw_rollouts")
PROBE = "tw_audit"
"""Part of every invented name."""
ANSWER_S = 30
SILENCE_S = 0.5
"""How long an answer may take that must not come."""

PUBLISHERS: Mapping[str, tuple[str, ...]] = {
    f"tw.v2.turn.{PROBE}.{PROBE}": ("frontend",),
    f"tw.v2.count.{PROBE}.{PROBE}": ("frontend",),
    f"tw.v2.tokenize.{PROBE}.{PROBE}": ("frontend",),
    f"tw.v2.detokenize.{PROBE}.{PROBE}": ("frontend",),
    f"tw.v2.gen.{PROBE}.{PROBE}": ("preprocessor",),
    f"tw.v2.kvall.{PROBE}.{PROBE}": ("preprocessor",),
    f"tw.v2.engine.{PROBE}.{PROBE}": ("frontend",),
    f"tw.v2.tok.{PROBE}": ("worker",),
    f"tw.v2.kv.{PROBE}.{PROBE}": ("worker",),
    f"tw.v2.evt.{PROBE}": ("preprocessor", "worker", "parser"),
    f"tw.v2.cancel.{PROBE}": ("frontend", "parser"),
    f"tw.v2.ledger.{PROBE}": ("parser",),
    "tw.v2.resp": ("frontend",),
    f"tw.v2.credit.parser.{PROBE}": ("frontend",),
    f"tw.v2.replay.parser.{PROBE}": ("frontend",),
    f"tw.v2.credit.worker.{PROBE}": ("parser",),
    f"tw.v2.replay.worker.{PROBE}": ("parser",),
    **{f"tw.v2.beat.{stage}.{PROBE}": (stage,) for stage in STAGES},
    f"_INBOX_frontend.{PROBE}.1": ("preprocessor", "worker"),
    f"_INBOX_preprocessor.{PROBE}.1": ("frontend", "worker"),
    f"$KV.tw_ledger.{PROBE}.{PROBE}": ("parser",),
    f"$KV.tw_responses.{PROBE}": ("frontend",),
    f"$KV.tw_media.{PROBE}": ("frontend",),
    f"$KV.tw_rollouts.{PROBE}.{PROBE}": ("frontend",),
    "$JS.API.DIRECT.GET.KV_tw_ledger": ("preprocessor",),
    f"$JS.API.DIRECT.GET.KV_tw_responses.$KV.tw_responses.{PROBE}": ("frontend",),
    f"$JS.API.DIRECT.GET.KV_tw_media.$KV.tw_media.{PROBE}": ("frontend", "worker"),
    "$JS.API.DIRECT.GET.KV_tw_rollouts": ("frontend",),
    **{
        f"$JS.API.STREAM.{call}.{bucket}": ("setup",)
        for call in ("CREATE", "UPDATE")
        for bucket in BUCKETS
    },
}
"""Subjects of services, and the users that may publish on them."""

SUBSCRIBERS: Mapping[str, tuple[str, ...]] = {
    "tw.v2.turn.*.*": ("preprocessor", "tap"),
    "tw.v2.count.*.*": ("preprocessor", "tap"),
    "tw.v2.tokenize.*.*": ("preprocessor", "tap"),
    "tw.v2.detokenize.*.*": ("preprocessor", "tap"),
    "tw.v2.gen.*.*": ("worker", "tap"),
    "tw.v2.kvall.*.*": ("worker", "tap"),
    "tw.v2.engine.*.*": ("worker", "tap"),
    "tw.v2.tok.*": ("parser", "tap"),
    "tw.v2.kv.*.*": ("preprocessor", "tap"),
    "tw.v2.evt.*": ("frontend", "tap"),
    "tw.v2.cancel.*": ("preprocessor", "worker", "parser", "tap"),
    "tw.v2.ledger.*": ("preprocessor", "tap"),
    "tw.v2.resp": ("frontend", "tap"),
    "tw.v2.credit.parser.*": ("parser", "tap"),
    "tw.v2.replay.parser.*": ("parser", "tap"),
    "tw.v2.credit.worker.*": ("worker", "tap"),
    "tw.v2.replay.worker.*": ("worker", "tap"),
    "tw.*.beat.*.*": (*STAGES, "tap"),
    "tw.v2.>": ("tap",),
    **{f"_INBOX_{user}.*.*": (user,) for user in USERS},
}
"""Subjects of services, and the users that may subscribe to them."""

_STREAM_CALLS = (
    *("CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "SNAPSHOT", "RESTORE"),
    *("MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN", "PEER.REMOVE"),
)
_CONSUMER_CALLS = (
    "LIST",
    "NAMES",
    "INFO",
    "DELETE",
    "MSG.NEXT",
    "PAUSE",
    "RESET",
    "UNPIN",
    "LEADER.STEPDOWN",
)


def forbidden_to_publish() -> list[str]:
    """Subjects on which no user may publish, except `setup` on those where PUBLISHERS names it."""
    found = [
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.LIST",
        "$JS.API.META.LEADER.STEPDOWN",
    ]
    found += [f"$JS.API.ACCOUNT.PURGE.{PROBE}", "$JS.API.SERVER.REMOVE", "$JS.EVENT.ADVISORY.API"]
    for stream in (*BUCKETS, PROBE):
        found += [f"$JS.API.STREAM.{call}.{stream}" for call in _STREAM_CALLS]
        found += [f"$JS.API.CONSUMER.{call}.{stream}.{PROBE}" for call in _CONSUMER_CALLS]
        found += [
            f"$JS.API.CONSUMER.CREATE.{stream}",
            f"$JS.API.CONSUMER.CREATE.{stream}.{PROBE}.tw.v2.turn.a.b",
        ]
        found += [
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{PROBE}",
            f"$JS.ACK.{stream}.{PROBE}.1.1.1.1.1",
        ]
        found += [
            f"$JS.API.DIRECT.GET.{stream}{end}"
            for end in ("", ".>", ".*", ".$KV.>", ".tw.v2.turn.a.b")
        ]
        found += [f"$JS.FC.{stream}.{PROBE}"]
    found += [
        "$SYS.REQ.USER.INFO",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.ACCOUNT.TURNWIRE.CONNZ",
        "$SRV.PING",
    ]
    found += [f"$KV.tw_ledger.{PROBE}", f"$KV.{PROBE}.{PROBE}", f"_R_.{PROBE}"]
    found += [f"$KV.tw_responses.{PROBE}.{PROBE}", f"$KV.tw_media.{PROBE}.{PROBE}"]
    found += [f"$KV.tw_rollouts.{PROBE}"]
    found += [
        f"_INBOX.{PROBE}",
        f"_INBOX.{PROBE}.1",
        *(f"_INBOX_{user}.{PROBE}.1.2" for user in USERS),
    ]
    found += [f"_INBOX_{user}.{PROBE}.1" for user in ("worker", "parser", "setup", "tap")]
    found += [
        f"tw.v2.credit.frontend.{PROBE}",
        f"tw.v2.replay.frontend.{PROBE}",
        "tw.v2",
        f"tw.v2.{PROBE}",
        PROBE,
    ]
    return [subject for subject in found if subject not in PUBLISHERS]


def forbidden_to_subscribe() -> list[str]:
    """Subjects to which no user may subscribe."""
    found = [
        ">",
        "*",
        "*.>",
        "tw.>",
        "tw.*.>",
        "$SYS.>",
        "$JS.>",
        "$JS.API.>",
        "$JS.EVENT.>",
        "$SRV.>",
        "_R_.>",
    ]
    found += [
        "$KV.>",
        "$KV.tw_ledger.>",
        "$KV.tw_ledger.*.*",
        "$KV.tw_responses.>",
        "$KV.tw_responses.*",
    ]
    found += ["$KV.tw_media.>", "$KV.tw_media.*", "$KV.tw_rollouts.>", "$KV.tw_rollouts.*.*"]
    found += ["_INBOX.>", "_INBOX.*", "*.*", "*.*.*", *(f"_INBOX_{user}.>" for user in USERS)]
    return found


class User:
    """A connection as one user."""

    def __init__(self, name: str, client: Client, refusals: list[str]) -> None:
        self.name = name
        self.client = client
        self._refusals = refusals

    async def refused(self) -> set[str]:
        """Returns the subjects, in lower case, that the server has refused since the last call."""
        for _ in range(
            3
            # nats-py sends the first ping ahead of what was published, and reports refusals in a
            # task
        ):
            await self.client.flush()
        found, self._refusals[:] = (
            {text.split('"')[1].lower() for text in self._refusals if '"' in text},
            [],
        )
        return found

    async def not_refused(self, publish: Iterable[str], subscribe: Iterable[str]) -> list[str]:
        """Returns the subjects that the server allows."""
        publish, subscribe, found = list(publish), list(subscribe), list[str]()
        for subject in publish:
            await self.client.publish(subject, b"")
        refused = await self.refused()
        found += [
            f"{self.name} may publish on {subject}"
            for subject in publish
            if subject.lower() not in refused
        ]
        for queue in ("", "q"):
            made = [(subject, await self.client.subscribe(subject, queue)) for subject in subscribe]
            refused = await self.refused()
            for subject, subscription in made:
                if subject.lower() not in refused:
                    found.append(
                        f"{self.name} may subscribe to {subject}"
                        + (f" in queue group {queue}" if queue else "")
                    )
                await subscription.unsubscribe()
        return found


class Audit:
    """All users of one bus."""

    def __init__(self, url: str, secrets: Path, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._secrets = secrets
        self._tls = tls

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[User]:
        """Connects as a user. Raises nats.errors.Error if the server does not accept it."""
        refusals: list[str] = []

        async def refuse(error: Exception) -> None:
            refusals.append(str(error))

        client = await nats.connect(
            self._url,
            user=name,
            password=(self._secrets / name / "nats.password").read_text().strip(),
            inbox_prefix=f"_INBOX_{name}",
            error_cb=refuse,
            allow_reconnect=False,
            connect_timeout=ANSWER_S,
            tls=self._tls,
        )
        try:
            yield User(name, client, refusals)
        finally:
            await client.close()

    async def run(self) -> list[str]:
        """Returns everything that was not refused."""
        found = []
        for name in USERS:
            publish = [
                s for s, users in PUBLISHERS.items() if name not in users
            ] + forbidden_to_publish()
            subscribe = [
                s for s, users in SUBSCRIBERS.items() if name not in users
            ] + forbidden_to_subscribe()
            if name == "tap":  # it may subscribe to these: tw.v2.> is its right
                subscribe = [s for s in subscribe if not s.startswith("tw.v2")]
            async with self.user(name) as user:
                found += await user.not_refused(publish, subscribe)
                found += await self._by_an_answer_to_itself(user)
        found += await self._by_an_answer_of_jetstream()
        return found

    async def _by_an_answer_to_itself(self, user: User) -> list[str]:
        """Tries to answer a message of one's own: with `allow_responses` a user may publish on any
        reply subject."""
        if user.name not in STAGES:
            return []
        target, own = f"$JS.API.STREAM.DELETE.{PROBE}", f"tw.v2.beat.{user.name}.{PROBE}"
        subscription = await user.client.subscribe(own)
        await user.client.publish(own, b"{}", reply=target)
        await subscription.next_msg(ANSWER_S)
        await user.refused()
        return await user.not_refused([target], [])

    async def _by_an_answer_of_jetstream(self) -> list[str]:
        """Tries to have JetStream send a stored value to a forbidden subject, named by its reader
        for the answer.

        A value that is the configuration of a stream, sent to the subject that creates streams,
        would copy heartbeats to `tw.v2.tw_audit.>`.
        """
        subject = f"$KV.tw_responses.{PROBE}"
        evil = {
            "name": PROBE,
            "subjects": ["tw.v2.beat.>"],
            "republish": {"src": "tw.v2.beat.>", "dest": f"tw.v2.{PROBE}.>"},
        }
        received = list[str]()

        async def receive(message: Msg) -> None:
            received.append(message.subject)

        async with self.user("tap") as tap, self.user("frontend") as frontend:
            await tap.client.subscribe(f"tw.v2.{PROBE}.>", cb=receive)
            await tap.client.flush()
            await frontend.client.request(subject, json.dumps(evil).encode(), timeout=ANSWER_S)
            read = f"$JS.API.DIRECT.GET.KV_tw_responses.{subject}"
            await frontend.client.publish(read, b"", reply=f"$JS.API.STREAM.CREATE.{PROBE}")
            await frontend.client.flush()
            await asyncio.sleep(SILENCE_S)
            await frontend.client.publish(f"tw.v2.beat.frontend.{PROBE}", b"{}")
            await frontend.client.publish(subject, b"")
            await frontend.client.flush()
            await asyncio.sleep(SILENCE_S)
        if received:
            return [
                f"frontend may create streams by an answer of JetStream; delete the stream {PROBE}"
            ]
        return []


def main() -> int:
    """Prints everything that was not refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("secrets", type=Path)
    parser.add_argument("--ca", help="certificate authority of the server")
    parser.add_argument("--cert", help="certificate of this client")
    parser.add_argument("--key", help="its private key")
    arguments = parser.parse_args()
    tls = None
    try:
        if arguments.ca or arguments.cert:
            tls = ssl.create_default_context(cafile=arguments.ca)
        if tls and arguments.cert:
            tls.load_cert_chain(arguments.cert, arguments.key)
        found = asyncio.run(Audit(arguments.url, arguments.secrets, tls).run())
    except nats.errors.NoRespondersError:
        print(
            "audit: there is no bucket tw_responses; `turnwire buckets` creates it", file=sys.stderr
        )
        return 2
    except (nats.errors.Error, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(f"NOT REFUSED: {line}")
    print(
        f"{len(USERS)} users: "
        + (f"{len(found)} rights too many" if found else "everything was refused")
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
