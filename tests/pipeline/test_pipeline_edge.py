"""A frontend with HTTPS and keys with limits, both of which are replaced while it serves."""

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from services.cli.main import main
from tests.kit.certificates import Authority, pem
from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S

if TYPE_CHECKING:
    import anthropic

MESSAGES: Any = [{"role": "user", "content": say("</think>hello")}]


class Guarded:
    """A frontend with TLS and keys, and the files of its operator."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("first")
        self.keys = directory / "keys"
        self.key = ""
        self.url = ""

    def make_key(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        assert main(["key", *arguments, "--file", str(self.keys)]) == 0
        return capsys.readouterr().out.strip()

    def client(self, key: str) -> "anthropic.Anthropic":
        """A client that trusts the current authority."""
        import anthropic

        authority = pem(self.authority.certificate).decode()
        context = ssl.create_default_context(cadata=authority)
        # Connections stay open however long a wait takes.
        kept = httpx2.Limits(keepalive_expiry=None)
        http = anthropic.DefaultHttpxClient(verify=context, limits=kept)
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0, http_client=http)


@pytest.fixture
def guarded(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Guarded]:
    found = Guarded(tmp_path)
    found.key = found.make_key(capsys, "ops", "concurrency=1", "rpm=600")
    certificate, key = found.authority.write(tmp_path, "server")
    files = {"tls_cert_file": certificate, "tls_key_file": key, "api_keys_file": found.keys}
    child = stack.start("frontend", **files, head_timeout_s=1)
    found.url = child.url.replace("http:", "https:")
    try:
        yield found
    finally:
        child.kill()
        stack.children.remove(child)


def wait_until(done: Callable[[], bool]) -> None:
    """Waits until `done` returns True; errors of the SDK count as False."""
    import anthropic

    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            if done():
                return
        except anthropic.APIError:
            pass
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)


def answers(client: "anthropic.Anthropic") -> bool:
    """Whether a turn is answered; False where the key is refused."""
    import anthropic

    try:
        message = client.messages.create(model=MODEL, max_tokens=40, messages=MESSAGES)
    except anthropic.AuthenticationError:
        return False
    return "".join(block.text for block in message.content if block.type == "text") == "hello"


def test_keys_and_certificates_are_replaced_while_it_serves(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded.client(guarded.key) as first, guarded.client("wrong") as stranger:
        wait_until(lambda: answers(first))
        assert not answers(stranger)
        raw = first.messages.with_raw_response.create(model=MODEL, max_tokens=40, messages=MESSAGES)
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "600"

        other = guarded.make_key(capsys, "team")
        with guarded.client(other) as team:
            wait_until(lambda: answers(team))
            lines = guarded.keys.read_text().splitlines()
            kept = "\n".join(line for line in lines if not line.startswith("ops:"))
            guarded.keys.write_text(kept)
            wait_until(lambda: not answers(first))
            assert answers(team)

            guarded.authority = Authority("second")
            guarded.authority.write(guarded.directory, "server")

            def new_connection_is_served() -> bool:
                with guarded.client(other) as client:
                    return answers(client)

            wait_until(new_connection_is_served)
            assert answers(team), "an open connection keeps its certificate"
