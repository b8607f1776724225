"""The host names that a server answers to."""

import pytest

from schemas.errors import Forbidden
from services.runtime.request_headers import AllowedHosts


@pytest.mark.parametrize(
    ("configured", "listening", "guarded", "host", "fine"),
    [
        ([], "127.0.0.1", False, "other", False),
        ([], "0.0.0.0", False, "other", True),
        ([], "127.0.0.1", True, "other", True),
        (["other"], "127.0.0.1", False, "other:1", True),
        (["other"], "0.0.0.0", False, "third", False),
        (["*"], "127.0.0.1", False, "third", True),
        (["[2001:db8::1]"], "::", False, "[2001:db8::1]:80", True),
        ([], "127.0.0.1", False, "localhost.evil.example", False),
        ([], "127.0.0.1", False, "", False),
        ([], "127.0.0.1", False, "l\u24deocalhost", False),
    ],
)
def test_host_name_is_checked(
    configured: list[str], listening: str, guarded: bool, host: str, fine: bool
) -> None:
    hosts = AllowedHosts.of(configured, listening, guarded=guarded)
    if fine:
        hosts.check(host)
    else:
        with pytest.raises(Forbidden, match="has no host name"):
            hosts.check(host)
