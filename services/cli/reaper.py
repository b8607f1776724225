"""The leader of the process group in which `turnwire up` keeps its children.

It holds one end of a pipe whose other end only `up` has. When `up` is gone, however that came about, the pipe closes,
and the whole group is told to end, and made to after a moment. So no orphan is left even by `kill -9`, on every POSIX
system, children of children included.
"""

import os
import signal
import sys
import time

GRACE_S = 5.0


def main() -> None:
    """Waits for the end of stdin, then ends the process group, itself last."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
