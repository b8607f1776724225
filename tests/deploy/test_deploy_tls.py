"""TLS to the bus, with the deployed configuration and real certificates: what is refused is one
line."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from services.cli.main import main
from tests.deploy.deployed import DeployedNats, stop, users
from tests.kit.certificates import Authority
from tests.kit.messages_client import Client, body, say
from tests.kit.stack import Stack


class Secured(NamedTuple):
    """A server that requires TLS, and clients' certificates with `mutual`."""

    server: DeployedNats
    ours: Authority
    foreign: Authority
    directory: Path

    def buckets(self, *flags: str) -> int:
        """`turnwire buckets` as a client of this server."""
        login = ["--nats-user", "setup", "--nats-password-file", self.server.password_file("setup")]
        return main(
            ["buckets", "--nats-url", self.server.url, "--connect-timeout-s", "30", *login, *flags]
        )

    def ca(self, authority: Authority | None = None) -> tuple[str, str]:
        authority = authority or self.ours
        return "--nats-ca-file", authority.write_self(
            self.directory / f"{authority.name.rfc4514_string()}.pem"
        )

    def certificate(self, authority: Authority) -> tuple[str, ...]:
        certificate, key = authority.write(
            self.directory, f"client-{authority.name.rfc4514_string()}"
        )
        return "--nats-cert-file", certificate, "--nats-key-file", key


def secured(
    binary: str, directory: Path, *, host: str = "127.0.0.1", mutual: bool = False
) -> Secured:
    ours, foreign = Authority("ours"), Authority("foreign")
    certificate, key = ours.write(directory, "server", host)
    verify = f'ca_file: "{ours.write_self(directory / "ca.pem")}", verify: true' if mutual else ""
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", {verify} }}\n'
    return Secured(DeployedNats(binary, directory, more=tls), ours, foreign, directory)


@pytest.fixture
def mutual(nats_binary: str, tmp_path: Path) -> Iterator[Secured]:
    made = secured(nats_binary, tmp_path, mutual=True)
    yield made
    made.server.kill()


def refused(status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of a command that failed."""
    assert status == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turnwire buckets: cannot connect to NATS at tls://127.0.0.1:")
    return line


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_client_refuses_a_foreign_authority_and_a_certificate_for_another_address(
    nats_binary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    made = secured(nats_binary, tmp_path, host=host)
    try:
        if host == "127.0.0.1":
            assert made.buckets(*made.ca()) == 0
        else:
            assert "IP address mismatch" in refused(made.buckets(*made.ca()), capsys)
        for untrusted in (made.ca(made.foreign), ()):
            assert "certificate verify failed" in refused(made.buckets(*untrusted), capsys)
    finally:
        made.server.kill()


def test_server_refuses_clients_without_a_trusted_certificate(
    mutual: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = mutual.ca()
    assert mutual.buckets(*ca, *mutual.certificate(mutual.ours)) == 0
    assert "certificate required" in refused(mutual.buckets(*ca), capsys)
    assert "unknown ca" in refused(mutual.buckets(*ca, *mutual.certificate(mutual.foreign)), capsys)


@pytest.mark.slow
async def test_pipeline_serves_over_mutual_tls(mutual: Secured, demo_dir: Path) -> None:
    flags = (*mutual.ca(), *mutual.certificate(mutual.ours))
    mutual.server.tls = {
        flag[2:].replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    stack = Stack(mutual.server, demo_dir, mutual.directory)
    try:
        stack.start_all(**users(mutual.server))
        client = Client(stack.url)
        assert (await client.stream(body(say("Hm.</think>Hello.")))).stop_reason == "end_turn"
        await client.http.close()
    finally:
        stop(mutual.server, stack)
