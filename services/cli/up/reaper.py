"""Leads the process group of `turnwire up`'s children, and ends it when `up` ends.

It holds one end of a pipe; `up` holds the other end. When `up` ends for any reason, the pipe
closes, and this process sends SIGTERM and then SIGKILL to the whole group. So even `kill -9` leaves
no orphans, on every POSIX system.
"""

import os
import signal
import sys
import time

GRACE_S = 5.0


def main() -> None:
    """Waits for the end of stdin, then ends the process group, including itself."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
