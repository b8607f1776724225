"""The line about a broken TLS file names the file and what is wrong, for the frontend and for the
bus."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.frontend.http.tls import Tls
from services.runtime.config import BusConfig
from services.runtime.nats_login import read_tls
from tests.kit.certificates import Authority


def locked_key() -> bytes:
    """A key with a password."""
    locked = serialization.BestAvailableEncryption(b"secret")
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def truncated(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:2], lines[-1]])


NO_CERTIFICATE = "has no certificate in PEM form that can be read"
NO_KEY = "has no private key in PEM form that can be read without a password"
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda _data: b"nothing",
    "truncated": truncated,
    "damaged": lambda data: data.replace(data.splitlines()[1][8:24], b"=" * 16),
}


@pytest.mark.parametrize(
    ("broken", "damage"), [("certificate", "text"), ("key", "truncated"), ("authority", "damaged")]
)
async def test_broken_file_is_named(broken: str, damage: str, tmp_path: Path) -> None:
    authority = Authority("one")
    cert_file, key_file = authority.write(tmp_path, "own")
    ca_file = authority.write_self(tmp_path / "ca.pem")
    path = Path({"certificate": cert_file, "key": key_file, "authority": ca_file}[broken])
    path.write_bytes(BROKEN[damage](path.read_bytes()))
    problem = f"{path} {NO_KEY if broken == 'key' else NO_CERTIFICATE}"
    await check(cert_file, key_file, ca_file, problem)


async def test_other_key_and_key_with_a_password_are_named(tmp_path: Path) -> None:
    authority = Authority("one")
    cert_file, _ = authority.write(tmp_path, "own")
    _, other = authority.write(tmp_path, "other")
    ca_file = authority.write_self(tmp_path / "ca.pem")
    await check(
        cert_file,
        other,
        ca_file,
        f"the key in {other} is not that of the certificate in {cert_file}",
    )
    await check(cert_file, None, ca_file, f"{cert_file} {NO_KEY}")
    Path(other).write_bytes(locked_key())
    await check(cert_file, other, ca_file, f"{other} {NO_KEY}")


async def check(cert_file: str, key_file: str | None, ca_file: str, problem: str) -> None:
    with pytest.raises(ValueError) as frontends:
        Tls(cert_file, key_file, ca_file)
    with pytest.raises(ValueError) as bus:
        await read_tls(
            BusConfig(nats_cert_file=cert_file, nats_key_file=key_file, nats_ca_file=ca_file)
        )
    assert [str(frontends.value), str(bus.value)] == [problem] * 2
