"""What `turnwire up` shows: progress, the children's logs, and how to use what it started.

On a terminal: colours and a spinner. Elsewhere: plain lines, and the children's JSON lines as they are.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from services.cli import logview
from services.cli.served import DEFAULT_URL
from services.cli.up_plan import Plan

REMIND_S = 10.0
"""Without a terminal, a wait is told again after this time."""

SMALL_WINDOW = 64 * 1024
"""Claude Code compacts 23,000 tokens before the window's end, in a small one before it has begun: its own prompt takes
16,000. It keeps less free where it may write less at once."""


class Screen:
    """stderr for what happens, stdout for the instructions."""

    def __init__(self, log_level: str) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._chatty = log_level == "debug"

    def child(self, name: str, line: str) -> None:
        """One line of a child."""
        if logview.is_chatter(line) and not self._chatty:
            return
        if self._console.is_terminal:
            self._console.print(logview.for_people(name, line))
        else:
            print(logview.for_programs(name, line), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line of `up` itself."""
        if self._console.is_terminal:
            self._console.print(Text("turnwire up    ", style="bold").append(text, style="not bold"))
        else:
            print(f"turnwire up: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """Shows that something takes time, and what it waits for, told by the function that it yields."""
        started, shown, next_reminder = time.monotonic(), what, 0.0

        def text() -> str:
            return f"{shown} ({time.monotonic() - started:.0f} s)"

        status = self._console.status(text()) if self._console.is_terminal else None

        def update(reason: str) -> None:
            nonlocal shown, next_reminder
            changed, shown = f"{what}: {reason}" != shown, f"{what}: {reason}"
            if status is not None:
                status.update(text())
            elif changed or time.monotonic() > next_reminder:
                next_reminder = time.monotonic() + REMIND_S
                self.say(text())

        if status is None:
            yield update
        else:
            with status:
                yield update

    def banner(self, plan: Plan, urls: Sequence[str], nats_url: str, window: int, seconds: float) -> None:
        """How to use it: on stdout, as it is to be typed."""
        print(instructions(plan, urls, nats_url, window, seconds), flush=True)


def instructions(plan: Plan, urls: Sequence[str], nats_url: str, window: int, seconds: float) -> str:
    """The text that a newcomer needs next."""
    keys = plan.frontend.api_keys_file
    exports = {
        "ANTHROPIC_BASE_URL": urls[0],
        "ANTHROPIC_AUTH_TOKEN": f"<the key to a hash in {keys}>" if keys else "any",
        "ANTHROPIC_MODEL": plan.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": plan.model,
    }
    # Claude Code takes every model that it does not know to have a million tokens.
    exports["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(window) if window else "<max_model_len of GET /v1/models>"
    if 0 < window <= SMALL_WINDOW:
        exports["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(window // 4)
    if plan.frontend.tls_cert_file:
        exports["NODE_EXTRA_CA_CERTS"] = f"<the authority that signed {plan.frontend.tls_cert_file}, if it is your own>"
    lines = [f"{plan.model} is served at {' '.join(urls)}  (ready after {seconds:.1f} s)", ""]
    if plan.demo:
        lines += [
            "It is the demo: a small rule-based agent that calls real tools. For a real one: --model, --engine.",
            "",
        ]
    lines += ["Point Claude Code at it:", ""]
    lines += [f"  export {name}={value if value[:1] == '<' else shlex.quote(value)}" for name, value in exports.items()]
    lines += ["  claude", "", "Other clients, or settings to keep:  turnwire connect claude|codex|openclaw|opencode"]
    lines[-1] += "" if urls[0] == DEFAULT_URL else f" --url {urls[0]}"
    lines += ["", f"Watch the turns go by:  turnwire tap --nats-url {nats_url}", "Ctrl-C ends it.", ""]
    return "\n".join(lines)
