"""Random agent sessions through published templates: what several tests of the ledger share."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from services.ledger.prompt.model import LedgerModel
from services.ledger.turn_ledger import Ledger
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from sessions.clients import Client, Dialogue
from sessions.models import build, empty_ledger
from sessions.published import of_trl, published
from sessions.turn_writer import WORD, Choices, Model, Output, start
from sessions.walk import SEALER, Before
from tests.kit.every import Cases
from tests.kit.examples import examples
from turnwire_tools.script import demo_model

DEMO = Path(demo_model.__file__).parent / "files" / "chat_template.jinja"
OWN = {file.stem: file for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
"""Forms that the published ones lack."""
NOT_WALKED = {
    "llamacpp_meetkai_functionary_medium_v3_2": "no family reads its calls, which have nothing that closes them",
    "xinference_deepseek_v3": "a damaged copy, which writes calls that are no JSON",
    "xinference_qwen1_5_chat": "a damaged copy, which writes calls that are no JSON",
}
"""Published templates with which no session of an agent can be played, and why."""
PUBLISHED = {name: file for name, file in published().items() if name not in NOT_WALKED}
TEMPLATES = {**PUBLISHED, **OWN, "demo": DEMO}
QUICK = {*{re.sub(r"(?<=\d).*|_.*", "", name): name for name in of_trl()}.values(), *OWN, "demo"}
"""One template of each kind; the others are its versions."""
FORMS = {*OWN, *({"demo", "gptoss", "glm4moe", "gemma4_v5", "llama3_2"} & TEMPLATES.keys())}
"""Templates of different forms."""
Check: TypeAlias = Callable[[str, Choices, "Models"], None]
"""Of a template's name, the chances of a session, and all models."""
LONG = (pytest.mark.slow, pytest.mark.timeout(3600))
"""Of tests that go through all templates."""


_chances = st.binary(min_size=150, max_size=400)
_quick = settings(
    max_examples=examples(4),
    # A session with fewer bytes is not simpler, and each takes a while.
    phases=[phase for phase in Phase if phase is not Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def parts(names: Iterable[str], rest: Iterable[str] = ()) -> list[Any]:
    """Parameters of one test: the names in parts of some seconds each, and the rest as a slow
    one."""
    quick = [name for name in TEMPLATES if name in set(names)]
    slow = [name for name in rest if name not in quick]
    count = min(4, len(quick))
    made = [pytest.param(quick[at::count], id=f"part {at + 1}") for at in range(count)]
    if slow:
        made.append(pytest.param(slow, id="the others", marks=LONG))
    return made


def in_sessions(names: Iterable[str], rest: Iterable[str] = ()) -> Callable[[Check], Any]:
    """Decorates a check of random sessions with one template, and makes a test of these templates
    and a slow one of the rest."""

    def decorate(check: Check) -> Any:
        @pytest.mark.parametrize("names", parts(names, rest))
        def test(names: Sequence[str], models: "Models", cases: Cases) -> None:
            assert names
            for name in names:
                with cases.case(template=name):
                    explore(name, models, check)

        return test

    return decorate


def explore(name: str, models: "Models", check: Check) -> None:
    """Calls the check with the chances of random sessions."""

    @_quick
    @given(chance=_chances)
    def session(chance: bytes) -> None:
        check(name, Choices(chance), models)

    session()


class Models:
    def __init__(self, directory: Path) -> None:
        self.of = cache(lambda name: build(TEMPLATES[name].read_text(), directory / name))


def decoded_words(setup: ModelSetup, ids: list[int]) -> list[str]:
    return WORD.findall(setup.tokenizer.decode(ids))


def renders_up_to(before: Before, prompt: Prompt, count: int, model: LedgerModel) -> bool:
    """Whether the template has the turn's first `count` words after the same text, in one message
    or in several of the model's own: each begins with its header or with a marker of its output.
    Some templates write calls as messages of another role (GigaChat 3), or nothing before the next
    message (Hunyuan 3)."""
    starts = (model.header, *(() if model.family.style.joint else model.family.markers))
    own = [start for start in starts if start and start not in model.ends]
    return before.whole_in(prompt.text, model.ends, own, count=count)


def tokens_received(output: Output, setup: ModelSetup) -> int:
    """The number of a turn's tokens; if it was cut off in a marker or a call, up to the last word
    of complete parts."""
    last = next((block for block in reversed(output.blocks) if block.text.strip()), None)
    if last is None or (
        last.kind != "tool_use" and output.text.rstrip().endswith(last.text.strip())
    ):
        return len(output.ids) if last is not None else 0
    words = sum(len(WORD.findall(block.text)) for block in output.blocks)
    texts = (setup.tokenizer.decode(output.ids[:size]) for size in range(len(output.ids) + 1))
    return next(size for size, text in enumerate(texts) if len(WORD.findall(text)) >= words)


def prompt_of(
    client: Client, dialogue: Dialogue, setup: ModelSetup, ledger: Ledger | None = None
) -> Prompt:
    ledger = ledger or Ledger(setup.encoder)
    unseal = SEALER.of(None).open
    prompt = assemble(client(dialogue), setup, unseal=unseal, ledger=ledger)
    ledger.keep(prompt.encoded)
    return prompt


class PlayedSession:
    """The beginning of a session, its model, and an empty ledger."""

    def __init__(self, setup: ModelSetup, chance: Choices) -> None:
        self.setup = setup
        self.ledger = empty_ledger(setup)
        self.model = Model(setup, self.ledger, chance)
        self.dialogue = start(self.model)

    def learn(self, output: Output) -> None:
        """Puts a turn into the ledger."""
        for entry in output.entries:
            self.ledger.add(entry)

    def prompt(self, client: Client, dialogue: Dialogue | None = None) -> Prompt:
        """The prompt of the session so far, as this client sends it."""
        return prompt_of(client, dialogue or self.dialogue, self.setup, self.ledger)
