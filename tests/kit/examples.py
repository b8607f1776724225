"""How many examples the property tests try."""

import os
import random
import secrets
from collections.abc import Iterator

import hypothesis
from hypothesis.internal.conjecture import providers

SLOW_MACHINE = (hypothesis.HealthCheck.too_slow,)
"""What a property may not be judged by: on a loaded machine any example may take seconds, to make
and to run."""
# A change meets the same examples in each run, so that what fails is the change; the nightly run
# explores others.
_any_machine = hypothesis.settings(deadline=None, suppress_health_check=SLOW_MACHINE)
hypothesis.settings.register_profile("quick", _any_machine, max_examples=20, derandomize=True)
hypothesis.settings.register_profile("thorough", _any_machine, max_examples=400, derandomize=True)
hypothesis.settings.register_profile("explore", _any_machine, max_examples=400)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
hypothesis.settings.load_profile(PROFILE)
QUICK = PROFILE == "quick"
if PROFILE != "explore":
    # Hypothesis also draws the constants of all modules that are imported so far. Each process of
    # pytest-xdist has others.
    providers.is_local_module_file = lambda _: False  # type: ignore[assignment,attr-defined]


_RUN = secrets.token_hex(4) if PROFILE == "explore" else ""


def examples(thorough: int, quick: int = 0) -> int:
    """The examples of a property that sets their number itself: in the quick profile a third of
    them, or `quick`."""
    return (quick or -(-thorough // 3)) if QUICK else thorough


def chances(name: str, thorough: int, quick: int = 0) -> Iterator[random.Random]:
    """The chance of each example of a property that draws by itself; its seed is printed."""
    for number in range(examples(thorough, quick)):
        seed = f"{name} {number} {_RUN}"
        print("seed", repr(seed))
        yield random.Random(seed)


def chance_for(text: str) -> random.Random:
    """The chance of what one example decides, such as the cuts of its text."""
    return random.Random(f"{text} {_RUN}")
