"""Builds every subject on the bus.

tw.v2.turn.<model>.<preprocessor>       frontend → one preprocessor           request and reply
tw.v2.count.<model>.<preprocessor>      frontend → one preprocessor           request and reply
tw.v2.tokenize.<model>.<preprocessor>   frontend → one preprocessor           request and reply
tw.v2.detokenize.<model>.<preprocessor> frontend → one preprocessor           request and reply
tw.v2.gen.<model>.<worker>              preprocessor → one worker             request and reply
tw.v2.kvall.<model>.<worker>            preprocessor → one worker             all its KV blocks
tw.v2.engine.<model>.<worker>           frontend → one worker                 pause, other weights
tw.v2.tok.<parser>                      worker → one parser shard             frames of tokens
tw.v2.evt.<frontend>                    preprocessor, parser → one frontend   frames of events
tw.v2.replay.<stage>.<id>               receiver → one sender
tw.v2.credit.<stage>.<id>               receiver → one sender
tw.v2.beat.<stage>.<id>                 every process → all, also those of other protocols
tw.v2.cancel.<model>                    any → preprocessors, workers, parsers of the model
tw.v2.kv.<model>.<worker>               worker → preprocessors                changed KV blocks
tw.v2.ledger.<model>                    parser → preprocessors                finished turns
tw.v2.resp                              frontend → frontends                  notices

$KV.<bucket>.<key>                         stored values (JetStream's key-value form, NATS ADR-8)
$KV.<bucket>.<key>.<member>                the values of a key that has several

There are no queue groups: the sender chooses the receiver.
"""

import re

PREFIX = "tw.v2"
"""Begins every subject, with the number of the protocol. A release with messages that this one
cannot read, or would misread, has another number: NATS then passes no message between the two,
heartbeats excepted (`heartbeats`)."""
ALL = f"{PREFIX}.>"

_SPECIAL = re.compile(r"[^A-Za-z0-9_-]")


def escape(name: str) -> str:
    """Any text as one subject token of [A-Za-z0-9_=-]; other bytes become =XX. `unescape` reverses
    it."""
    return _SPECIAL.sub(_escape_char, name) if name else "="


def _escape_char(char: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in char[0].encode())


def unescape(token: str) -> str:
    """Reverses `escape`. Raises ValueError for text that `escape` does not make."""
    if token == "=":
        return ""
    head, *rest = token.split("=")
    out = bytearray(head.encode())
    for piece in rest:
        out.append(int(piece[:2], 16))
        out += piece[2:].encode()
    return out.decode()


def _subject(kind: str, *names: str) -> str:
    """Builds `tw.v2.<kind>.<name>…`."""
    return ".".join((PREFIX, kind, *map(escape, names)))


def turn(model: str, preprocessor: str) -> str:
    return _subject("turn", model, preprocessor)


def count(model: str, preprocessor: str) -> str:
    return _subject("count", model, preprocessor)


def tokenize(model: str, preprocessor: str) -> str:
    return _subject("tokenize", model, preprocessor)


def detokenize(model: str, preprocessor: str) -> str:
    return _subject("detokenize", model, preprocessor)


def generate(model: str, worker: str) -> str:
    return _subject("gen", model, worker)


def kv(model: str, worker: str) -> str:
    return _subject("kv", model, worker)


def kv_snapshot(model: str, worker: str) -> str:
    return _subject("kvall", model, worker)


def engine(model: str, worker: str) -> str:
    return _subject("engine", model, worker)


def replay(stage: str, process: str) -> str:
    return _subject("replay", stage, process)


def credit(stage: str, process: str) -> str:
    return _subject("credit", stage, process)


def heartbeat(stage: str, process: str) -> str:
    return _subject("beat", stage, process)


def tokens(parser: str) -> str:
    return _subject("tok", parser)


def events(frontend: str) -> str:
    return _subject("evt", frontend)


def cancel(model: str) -> str:
    return _subject("cancel", model)


def ledger(model: str) -> str:
    return _subject("ledger", model)


def own_heartbeats() -> str:
    """Matches the heartbeats of every process of this protocol."""
    return f"{PREFIX}.beat.*.*"


def heartbeats() -> str:
    """Matches the heartbeats of every process, also of other protocols: a process reports those
    (`is_own`)."""
    return "tw.*.beat.*.*"


def is_own(subject: str) -> bool:
    """Whether the sender of a message has the protocol of this process."""
    return subject.startswith(f"{PREFIX}.")


def heartbeat_sender(subject: str) -> tuple[str, str, str]:
    """Prefix, stage and escaped id of the sender: heartbeats of other protocols may have any
    form."""
    protocol, _, stage, process = subject.rsplit(".", 3)
    return protocol, stage, process


def every_kv(model: str) -> str:
    """Matches the KV events of all workers of a model."""
    return f"{PREFIX}.kv.{escape(model)}.*"


def frontends() -> str:
    """The subject of notices between frontends."""
    return f"{PREFIX}.resp"


def bucket_key(bucket: str, key: str) -> str:
    """The subject of a key's value. Any text is a key."""
    return f"$KV.{bucket}.{escape(key)}"


def bucket_member(bucket: str, key: str, member: str) -> str:
    """The subject of one value of a key that has several."""
    return f"{bucket_key(bucket, key)}.{escape(member)}"


def bucket_members(bucket: str, key: str) -> str:
    """Matches the values of a key that has several."""
    return f"{bucket_key(bucket, key)}.*"


def bucket_keys(bucket: str) -> str:
    """Matches every key of a bucket."""
    return f"$KV.{bucket}.>"


def stream_of(bucket: str) -> str:
    """The name of a bucket's stream."""
    return f"KV_{bucket}"


def stored_messages(stream: str) -> str:
    """The subject of requests for messages of a stream; the request names them (NATS ADR-31)."""
    return f"$JS.API.DIRECT.GET.{stream}"
