"""Random agent sessions through published templates: the next prompt begins with the ids of the
engine, wherever the template keeps the turn; where it does not, the prompt is the template's own
text."""

import os
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bench.ledger.clients import CLIENTS
from bench.ledger.models import build
from bench.ledger.published import of_trl, published
from bench.ledger.sessions import WORD, Output
from bench.ledger.walk import Before, Step, Walk, common
from fuzz.generated_turns import Choices
from services.ledger.model import LedgerModel
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt
from tests.kit.examples import examples
from tests.kit.response_templates import of_trl as descriptions
from tests.templates.test_templates_described import DESCRIBED as WRITTEN_AGAIN
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
DESCRIBED = {**WRITTEN_AGAIN, "deepseek_r1_distill": "deepseek_r1_distill"}
"""Templates, and the descriptions that trl has for them."""
CHANCE = st.binary(min_size=150, max_size=400)
quick = settings(
    max_examples=examples(6),
    # A session with fewer bytes is not simpler, and each takes a while.
    phases=[phase for phase in Phase if phase is not Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> "Models":
    return Models(tmp_path_factory.mktemp("models"))


class Models:
    def __init__(self, directory: Path) -> None:
        self.of = cache(lambda name: build(TEMPLATES[name].read_text(), directory / name))
        self.described = cache(
            lambda name: build(
                PUBLISHED[name].read_text(),
                directory / f"{name}-described",
                descriptions()[DESCRIBED[name]],
            )
        )


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


def check(step: Step, setup: ModelSetup, *, partly: bool = False) -> None:
    """`partly`: a turn that the template keeps may still be rendered again, as happens with a few
    templates."""
    ids, text = [*step.prompt.ids], step.prompt.text
    assert decoded_words(setup, ids) == WORD.findall(text)
    kept = step.newest_kept
    if kept is None or (ids == step.plain and not kept.whole_in(text, step.ends)):
        assert ids == step.plain
        return
    if partly and ids[: len(kept.ids)] != kept.ids:
        return
    assert ids[: len(kept.ids)] == kept.ids, (kept.output.text, text[len(kept.head) :])
    rest = ids[len(kept.ids) :]
    end = text[len(text) - len(setup.tokenizer.decode(rest)) :]
    assert rest == [*setup.encoder.encode(end)], "the text after it has other tokens than its own"
    assert (
        WORD.findall(text)[: -len(WORD.findall(end)) or None]
        == WORD.findall(kept.head) + kept.output.words
    )


@pytest.mark.skipif(
    not published(), reason="trl is not installed: only our own templates are walked"
)
def test_templates_are_installed() -> None:
    assert len(of_trl()) >= 40
    assert "CHAT_TEMPLATES" not in os.environ or len(PUBLISHED) >= 125


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TEMPLATES],
)
@quick
@given(chance=CHANCE)
def test_each_prompt_extends_the_last_one_and_its_turn(
    models: Models, name: str, chance: bytes
) -> None:
    setup, choose = models.of(name), Choices(chance)
    client = choose.of(list(CLIENTS.values()))
    for step in Walk(setup, choose, [client]):
        check(step, setup, partly=name in PUBLISHED and name not in of_trl())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("qwen3", "nemotron_3_nano") else pytest.mark.slow)
        for name in DESCRIBED
        if name in PUBLISHED
    ],
)
@quick
@given(chance=CHANCE)
def test_prompts_of_a_model_that_describes_its_output_extend_each_other(
    models: Models, name: str, chance: bytes
) -> None:
    setup, choose = models.described(name), Choices(chance)
    assert setup.family.title == "response_template"
    client = choose.of(list(CLIENTS.values()))
    for step in Walk(setup, choose, [client]):
        check(step, setup)


@pytest.mark.parametrize(
    "name", [name for name in TEMPLATES if name in ("qwen3", "qwen3_8", "glm4moe", "gptoss", *OWN)]
)
@quick
@given(chance=CHANCE)
def test_every_client_gets_the_same_prompt(models: Models, name: str, chance: bytes) -> None:
    for step in Walk(models.of(name), Choices(chance), list(CLIENTS.values()), turns=4):
        for other in step.others:
            assert [*other.ids] == [*step.prompt.ids]


@pytest.mark.parametrize(
    "name", [name for name in TEMPLATES if name in ("qwen3", "nemotron_3_nano", "gemma4", *OWN)]
)
@quick
@given(chance=CHANCE)
def test_lost_entries_cost_tokens_and_nothing_else(
    models: Models, name: str, chance: bytes
) -> None:
    setup, choose = models.of(name), Choices(chance)
    client = choose.of(list(CLIENTS.values()))
    for step in Walk(setup, choose, [client], lossy=True):
        assert decoded_words(setup, [*step.prompt.ids]) == WORD.findall(step.prompt.text)


@pytest.mark.parametrize(
    "name", [name for name in TEMPLATES if name in ("qwen3_8", "gptoss", "glm4moe", "demo", *OWN)]
)
@quick
@given(chance=CHANCE)
def test_cut_turn_is_a_prefix_too(models: Models, name: str, chance: bytes) -> None:
    setup, choose = models.of(name), Choices(chance)
    client = choose.of(list(CLIENTS.values()))
    for step in Walk(setup, choose, [client], cut=True):
        ids, text = [*step.prompt.ids], step.prompt.text
        assert decoded_words(setup, ids) == WORD.findall(text)
        assert step.prompt.encoded.outcome
        newest = step.before[-1]
        sent = any(
            block.kind != "reasoning" and block.text.strip() for block in newest.output.blocks
        )
        if step.prompt.encoded.outcome == "reused" and sent:
            same = common(ids, newest.ids)
            assert same >= len(newest.prompt.ids) + tokens_received(newest.output, setup)
            assert text.endswith(setup.tokenizer.decode(ids[same:]))
