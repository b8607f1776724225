"""The line about a broken TLS file names the file and what is wrong, for the frontend and for the
bus."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.frontend.http.tls import Tls
from services.runtime.config import BusConfig
from services.runtime.nats_login import read_tls
from tests.kit.certificates import Authority

NO_CERTIFICATE = "has no certificate in PEM form that can be read"
NO_KEY = "has no private key in PEM form that can be read without a password"


def locked_key() -> bytes:
    """A key with a password."""
    locked = serialization.BestAvailableEncryption(b"secret")
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


async def check(files: tuple[str, str | None, str], problem: str) -> None:
    cert, key, ca = files
    with pytest.raises(ValueError) as frontends:
        Tls(cert, key, ca)
    with pytest.raises(ValueError) as bus:
        await read_tls(BusConfig(nats_cert_file=cert, nats_key_file=key, nats_ca_file=ca))
    assert [str(frontends.value), str(bus.value)] == [problem] * 2


async def test_broken_and_foreign_files_are_named(tmp_path: Path) -> None:
    authority = Authority("one")
    cert, key = authority.write(tmp_path, "own")
    _, other = authority.write(tmp_path, "other")
    ca = authority.write_self(tmp_path / "ca.pem")
    locked, broken = tmp_path / "locked.key", tmp_path / "broken"
    locked.write_bytes(locked_key())
    broken.write_bytes(b"nothing")
    for files, problem in (
        ((str(broken), key, ca), f"{broken} {NO_CERTIFICATE}"),
        ((cert, str(broken), ca), f"{broken} {NO_KEY}"),
        ((cert, key, str(broken)), f"{broken} {NO_CERTIFICATE}"),
        ((cert, None, ca), f"{cert} {NO_KEY}"),
        ((cert, str(locked), ca), f"{locked} {NO_KEY}"),
        ((cert, other, ca), f"the key in {other} is not that of the certificate in {cert}"),
    ):
        await check(files, problem)
    text = Path(ca).read_text()
    Path(ca).write_text(text.replace(text.splitlines()[1][8:24], "=" * 16))
    await check((cert, key, ca), f"{ca} {NO_CERTIFICATE}")
