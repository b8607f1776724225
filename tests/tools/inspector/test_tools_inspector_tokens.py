"""The text of tokens needs the vocabulary of the turn's own model."""

from pathlib import Path

from msgspec.structs import replace

from schemas.conversation import Text
from services.cli.instances import Instance
from services.tokenization.tokenizer_files import load_backend
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import Bus, asked
from turnwire_tools.inspector.command import load_vocabularies
from turnwire_tools.inspector.sections import Sections
from turnwire_tools.inspector.tokens import tokens_of


def test_a_vocabulary_is_used_for_turns_of_its_model_only(bus: Bus, demo_dir: Path) -> None:
    question = "Where is the config file?"
    ids = load_backend(str(demo_dir), trust_remote_code=False).encode(f"You. {question}").ids
    request = asked(user(question), tools=[])
    turns = {
        model: bus.turn(replace(request, model=model), ids, ids[:2], Text("x"))
        for model in ("coder", "other")
    }
    for flag, known in ((f"coder={demo_dir}", {"coder"}), (str(demo_dir), {"coder", "other"})):
        vocabularies = load_vocabularies([flag], {}, None)
        sections = Sections(bus.fold, vocabularies)
        for model, turn in turns.items():
            (part,) = sections.section(turn).parts
            assert part.exact == (model in known), (flag, model)
            found = tokens_of(turn, None, vocabularies.of(model))
            assert bool(found.texts) == (model in known), (flag, model)


def test_an_instance_has_a_vocabulary_for_each_of_its_models(demo_dir: Path) -> None:
    one = Instance(
        url="http://h",
        urls=[],
        model="coder",
        pid=1,
        nats_url="nats://h",
        model_dir=str(demo_dir),
        models=["coder"],
    )
    assert load_vocabularies([], {}, one).of("any adapter") is not None

    models = {"coder": str(demo_dir), "small": str(demo_dir), "lost": "/none"}
    several = replace(one, models=list(models), model_dirs=models)
    vocabularies = load_vocabularies([], {}, several)
    known = [name for name in (*models, "other") if vocabularies.of(name) is not None]
    assert known == ["coder", "small"]
