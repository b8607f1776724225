"""Where the NATS servers are, and as which user a process connects."""

from pathlib import Path

import pytest

from services.runtime.config import BusConfig
from services.runtime.nats_login import parse_servers, read_login

CREDENTIALS = "-----BEGIN NATS USER JWT-----\nabc\n------END------\n-----BEGIN USER NKEY SEED-----\nSU\n------END------"


def test_several_servers_are_kept_by_address() -> None:
    servers = parse_servers("nats://a:4222, tls://me:secret@b , c:1")
    assert {address: (url.scheme, url.username) for address, url in servers.items()} == {
        "a:4222": ("nats", None),
        "b": ("tls", "me"),
        "c:1": ("nats", None),
    }


@pytest.mark.parametrize("url", ["http://a", "nats://", "nats://a:0", "nats://a:x", "a,,b"])
def test_a_peer_that_is_not_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|Port|port"):
        parse_servers(url)


@pytest.mark.parametrize(
    ("url", "config", "login"),
    [
        ("nats://a", {}, {}),
        ("nats://to%40ken@a", {}, {"token": "to@ken"}),
        ("nats://me:s%3Aecret@a", {}, {"user": "me", "password": "s:ecret"}),
        (
            "nats://me:secret@a",
            {"nats_user": "you", "nats_password_file": "password"},
            {"user": "you", "password": "hidden"},
        ),
        ("nats://me@a", {"nats_password_file": "password"}, {"user": "me", "password": "hidden"}),
        ("nats://me:secret@a", {"nats_creds_file": "user.creds"}, {"credentials": CREDENTIALS}),
    ],
)
async def test_a_login_is_read_from_url_and_files(
    url: str,
    config: dict[str, str],
    login: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("password").write_text("hidden\n")
    Path("user.creds").write_text(CREDENTIALS)
    (server,) = parse_servers(url).values()
    assert await read_login(BusConfig(**config), server) == login  # type: ignore[arg-type]


async def test_a_file_without_credentials_is_named(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text("-----BEGIN NATS USER JWT-----")
    (server,) = parse_servers("a").values()
    with pytest.raises(ValueError, match=r"user\.creds"):
        await read_login(BusConfig(nats_creds_file=str(file)), server)
