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
from tests.kit.stack import MODEL, Child, Stack
from tests.kit.waiting import LIMIT_S

if TYPE_CHECKING:
    import anthropic


@pytest.fixture
def guarded(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator["Guarded"]:
    found = Guarded(tmp_path)
    found.key = found.make(capsys, "ops", "concurrency=1", "rpm=600")
    files = {
        "tls_cert_file": found.files[0],
        "tls_key_file": found.files[1],
        "api_keys_file": found.keys,
    }
    child = stack.start("frontend", **files, head_timeout_s=1)
    found.url = child.url.replace("http:", "https:")
    try:
        found.until_served(child)
        yield found
    finally:
        child.kill()
        stack.children.remove(child)


class Guarded:
    """A frontend with TLS and keys, and the files of its operator."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("first")
        self.files = self.authority.write(directory, "server")
        self.keys = directory / "keys"
        self.key = ""
        self.url = ""

    def make(self, capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
        assert main(["key", name, *options, "--file", str(self.keys)]) == 0
        return capsys.readouterr().out.strip()

    def client(self, key: str, authority: Authority | None = None) -> "anthropic.Anthropic":
        import anthropic

        context = ssl.create_default_context(
            cadata=pem((authority or self.authority).certificate).decode()
        )
        kept = httpx2.Limits(
            keepalive_expiry=None
        )  # connections stay open however long a wait takes
        http = anthropic.DefaultHttpxClient(verify=context, limits=kept)
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0, http_client=http)

    def until_served(self, child: Child) -> None:
        def served() -> bool:
            assert child.process.poll() is None, child.text()[-2000:]
            with self.client(self.key) as client:
                return client.get("/ready", cast_to=object) is not None

        wait_until(served)


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


def ask(client: "anthropic.Anthropic") -> str:
    messages: Any = [{"role": "user", "content": say("</think>hello")}]
    content = client.messages.create(model=MODEL, max_tokens=40, messages=messages).content
    return "".join(block.text for block in content if block.type == "text")


def refused(client: "anthropic.Anthropic") -> bool:
    import anthropic

    try:
        ask(client)
    except anthropic.AuthenticationError:
        return True
    return False


def answers(guarded: Guarded, key: str, authority: Authority) -> bool:
    with guarded.client(key, authority) as client:
        return ask(client) == "hello"


def test_https_is_served_with_keys_and_limits(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    import anthropic

    with guarded.client(guarded.key) as client, guarded.client("wrong") as stranger:
        assert ask(client) == "hello"
        with pytest.raises(anthropic.AuthenticationError):
            ask(stranger)
        raw = client.messages.with_raw_response.create(
            model=MODEL, max_tokens=40, messages=[{"role": "user", "content": say("</think>hello")}]
        )
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "600"
        assert raw.headers["request-id"].startswith("req_")


def test_keys_and_certificates_are_replaced_while_it_serves(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    other = guarded.make(capsys, "team")
    second = Authority("second")
    with guarded.client(guarded.key) as before, guarded.client(other) as team:
        wait_until(lambda: ask(team) == "hello")
        lines = guarded.keys.read_text().splitlines()
        guarded.keys.write_text("\n".join(line for line in lines if not line.startswith("ops:")))
        wait_until(lambda: refused(before))
        assert ask(team) == "hello"
        second.write(guarded.directory, "server")
        # A new connection for each try: open connections keep their certificate.
        wait_until(lambda: answers(guarded, other, second))
        assert ask(team) == "hello"
