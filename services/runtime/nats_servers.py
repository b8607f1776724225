"""Which NATS servers there are, how each is reached, and which one to try next. Pure."""

from collections.abc import Callable, Iterable
from urllib.parse import unquote, urlsplit

from msgspec import Struct

DEFAULT_PORT = 4222
_SCHEMES = ("nats", "tls")


class NatsServer(Struct, frozen=True):
    """A server as its URL tells it."""

    host: str
    port: int
    tls: bool = False
    """`tls://`: nothing but an encrypted connection will do."""
    user: str = ""
    """With no password it is a token."""
    password: str | None = None
    name: str = ""
    """The host whose certificate it shows, where that is another: members of a cluster tell their bare addresses."""

    @property
    def certificate_host(self) -> str:
        """The name that its certificate must have."""
        return self.name or self.host


def parse_url(url: str) -> NatsServer:
    """`nats://[USER[:PASSWORD]@]HOST[:PORT]`; `tls://` likewise; `HOST:PORT` alone is NATS.

    Raises:
        ValueError: another scheme, no host, or a port that is none.
    """
    parts = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{parts.scheme}:// is not supported; a NATS server's URL begins with nats:// or tls://")
    if not parts.hostname:
        raise ValueError("a NATS server's URL needs a host")
    return NatsServer(
        host=parts.hostname,
        port=parts.port or DEFAULT_PORT,
        tls=parts.scheme == "tls",
        user=unquote(parts.username or ""),
        password=None if parts.password is None else unquote(parts.password),
    )


class Servers:
    """The servers that may be tried, those that were configured and those of which the cluster told."""

    def __init__(self, urls: Iterable[str], shuffle: Callable[[list[NatsServer]], None]) -> None:
        """`shuffle`: puts a list in random order, so that a fleet spreads over a cluster. Raises as `parse_url`."""
        self._shuffle = shuffle
        self._known = [parse_url(url) for url in urls]
        self._round: list[NatsServer] = []

    def next(self) -> tuple[NatsServer, bool]:
        """The server to try next, and whether it is the first of a new round over all of them."""
        anew = not self._round
        if anew:
            self._round = list(self._known)
            self._shuffle(self._round)
        return self._round.pop(), anew

    def learn(self, addresses: Iterable[str], teller: NatsServer) -> None:
        """`teller` says where its cluster's servers are: they are reached as it is."""
        known = {(server.host, server.port) for server in self._known}
        for address in addresses:
            try:
                told = parse_url(address)
            except ValueError:
                continue
            if (told.host, told.port) not in known:
                known.add((told.host, told.port))
                name = teller.certificate_host
                self._known.append(
                    NatsServer(told.host, told.port, teller.tls, teller.user, teller.password, name=name)
                )
