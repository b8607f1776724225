"""Every subject on the bus is built here and nowhere else.

tw.v1.turn.<model>              frontend → preprocessor    queue group `preprocessor`
tw.v1.count.<model>             frontend → preprocessor    request and reply, same queue group
tw.v1.tokenize.<model>
tw.v1.detokenize.<model>
tw.v1.gen.<model>.<worker>      preprocessor → one worker
tw.v1.tok.<parser>              worker → parser shard
tw.v1.evt.<frontend>            preprocessor, parser → frontend
tw.v1.cancel.<model>            fan-out
tw.v1.replay.<stage>.<id>       receiver → sender
tw.v1.credit.<stage>.<id>       receiver → sender
tw.v1.beat.<stage>.<id>         every process
tw.v1.kv.<model>.<worker>       worker → preprocessors
tw.v1.ledger.<model>            parser → preprocessors
tw.v1.resp                      frontend → frontends
tw.v1.kvall.<model>.<worker>    preprocessor → one worker     request and reply

$KV.<bucket>.<key>              values that are kept (JetStream's key-value form, NATS ADR-8)
"""

import re

PREFIX = "tw.v1"
ALL = f"{PREFIX}.>"

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_is_plain = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def escape(name: str) -> str:
    """Any text as one subject token of [A-Za-z0-9_=-], reversible by `unescape`: other bytes become =XX."""
    if _is_plain(name):
        return name
    if not name:
        return "="
    return "".join(c if c in _PLAIN else "".join(f"={b:02X}" for b in c.encode()) for c in name)


def unescape(token: str) -> str:
    """The inverse of `escape`. Raises ValueError on text that `escape` does not make."""
    if token == "=":
        return ""
    head, *rest = token.split("=")
    out = bytearray(head.encode())
    for piece in rest:
        out.append(int(piece[:2], 16))
        out += piece[2:].encode()
    return out.decode()


def turn(model: str, preprocessor: str) -> str:
    """Turn requests for one preprocessor."""
    return f"{PREFIX}.turn.{escape(model)}.{escape(preprocessor)}"


def count(model: str, preprocessor: str) -> str:
    """Exact prompt token counts."""
    return f"{PREFIX}.count.{escape(model)}.{escape(preprocessor)}"


def tokenize(model: str, preprocessor: str) -> str:
    """Text or conversation to ids."""
    return f"{PREFIX}.tokenize.{escape(model)}.{escape(preprocessor)}"


def detokenize(model: str, preprocessor: str) -> str:
    """Ids to text."""
    return f"{PREFIX}.detokenize.{escape(model)}.{escape(preprocessor)}"


def generate(model: str, worker: str) -> str:
    """Generate requests for one worker."""
    return f"{PREFIX}.gen.{escape(model)}.{escape(worker)}"


def tokens(parser: str) -> str:
    """Token frames for one parser shard."""
    return f"{PREFIX}.tok.{escape(parser)}"


def events(frontend: str) -> str:
    """Event frames for one frontend."""
    return f"{PREFIX}.evt.{escape(frontend)}"


def cancel(model: str) -> str:
    """Cancellations, heard by every preprocessor, worker and parser of the model."""
    return f"{PREFIX}.cancel.{escape(model)}"


def replay(stage: str, process: str) -> str:
    """Requests to one process to send streams again."""
    return f"{PREFIX}.replay.{stage}.{escape(process)}"


def credit(stage: str, process: str) -> str:
    """Credit granted to one process."""
    return f"{PREFIX}.credit.{stage}.{escape(process)}"


def beat(stage: str, process: str) -> str:
    """Heartbeats of one process; `beats()` hears all."""
    return f"{PREFIX}.beat.{stage}.{escape(process)}"


def beats() -> str:
    """Heartbeats of every process."""
    return f"{PREFIX}.beat.*.*"


def kv(model: str, worker: str) -> str:
    """KV blocks stored and removed by one worker."""
    return f"{PREFIX}.kv.{escape(model)}.{escape(worker)}"


def responses() -> str:
    """Stored Responses that were deleted or cancelled, heard by every frontend."""
    return f"{PREFIX}.resp"


def bucket_key(bucket: str, key: str) -> str:
    """Where the value of a key is written. Any text is a key."""
    return f"$KV.{bucket}.{escape(key)}"


def bucket_keys(bucket: str) -> str:
    """Every key of a bucket."""
    return f"$KV.{bucket}.>"


def bucket_key_of(subject: str) -> str:
    """The key that `bucket_key` was given."""
    return unescape(subject.rpartition(".")[2])


def bucket_get(bucket: str, key: str) -> str:
    """Asks for the value of a key, from any server that holds it."""
    return f"$JS.API.DIRECT.GET.{stream_of(bucket)}.{bucket_key(bucket, key)}"


def stream_of(bucket: str) -> str:
    """Name of the stream in which a bucket lies."""
    return f"KV_{bucket}"


def stream_create(bucket: str) -> str:
    """Makes a bucket's stream; done already is fine."""
    return f"$JS.API.STREAM.CREATE.{stream_of(bucket)}"


def stream_update(bucket: str) -> str:
    """Gives a bucket's stream other limits."""
    return f"$JS.API.STREAM.UPDATE.{stream_of(bucket)}"


def every_kv(model: str) -> str:
    """KV blocks stored and removed by all workers of a model."""
    return f"{PREFIX}.kv.{escape(model)}.*"


def kv_snapshot(model: str, worker: str) -> str:
    """Asks one worker for all KV blocks that it holds."""
    return f"{PREFIX}.kvall.{escape(model)}.{escape(worker)}"


def ledger(model: str) -> str:
    """Turns that have ended, for every preprocessor of the model."""
    return f"{PREFIX}.ledger.{escape(model)}"
