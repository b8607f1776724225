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
"""

PREFIX = "tw.v1"
ALL = f"{PREFIX}.>"

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def escape(name: str) -> str:
    """Any text as one subject token of [A-Za-z0-9_=-], reversible by `unescape`: other bytes become =XX."""
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
