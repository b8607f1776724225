"""No user, password or token of a NATS URL shows in an error, a setting or a log line, however the
URL is spelled."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.main import main
from services.runtime.config.masking import mask_passwords, mask_servers
from services.runtime.nats.login import parse_servers

ODD = "@:/?#[]%;=&+!$'()*\"\\^`{|}~<>, "
PIECES = st.text(alphabet=ODD + "q", max_size=4)
HOSTS = st.sampled_from(["h", "h:4222", "127.0.0.1:1", "[::1]:4222", "bus.example.org"])
SCHEMES = st.sampled_from(["nats://", "tls://", ""])


@st.composite
def secrets_in_urls(draw: st.DrawFn) -> str:
    """One to three servers with logins that contain the word "geheim", and may have unescaped
    characters."""
    urls = []
    for _ in range(draw(st.integers(1, 3))):
        login = draw(PIECES) + "geheim" + draw(PIECES)
        if draw(st.booleans()):
            login = f"me{draw(PIECES)}:{login}" if draw(st.booleans()) else f"geheim:{login}"
        urls.append(f"{draw(SCHEMES)}{login}@{draw(HOSTS)}")
    return draw(st.sampled_from([",", ", ", " ,"])).join(urls)


def shown(url: str) -> Iterator[str]:
    """Where the setting is shown: errors, and texts that quote it."""
    yield mask_servers(url)
    # In other text, blanks and quotes end a URL, and a word before an `@` may be a mail address.
    if not set(', "') & set(url) and ("://" in url or ":" in url.rpartition("@")[0]):
        yield mask_passwords(f"cannot reach {url}: refused")
    try:
        parse_servers(url)
    except ValueError as error:
        yield repr(error) + repr(error.__cause__)


@given(secrets_in_urls())
def test_logins_are_masked_wherever_a_url_is_shown(url: str) -> None:
    for text in shown(url):
        assert "geheim" not in text, text


def test_addresses_without_a_login_are_shown_whole() -> None:
    for text in ("cannot reach nats://h:1,[::1]:2: refused", "https://h/@scope/x", "a/model@main"):
        assert mask_passwords(text) == text


def test_commands_show_no_login(capsys: pytest.CaptureFixture[str]) -> None:
    url = "nats://me:ge:heim@geheim/x?y@127.0.0.1:1"
    bus = ["--nats-url", url, "--connect-timeout-s=0.05"]
    for argv in (["tap", *bus], ["config", *bus], ["buckets", url]):
        with suppress(SystemExit):
            main(argv)
        printed = capsys.readouterr()
        assert "geheim" not in printed.out + printed.err, argv
