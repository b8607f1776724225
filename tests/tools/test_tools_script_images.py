"""What the scripted agent sees."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from schemas.conversation import OutputFormat, Sampling
from schemas.errors import Invalid
from services.runtime.config import WorkerConfig
from services.worker.engine import EngineImage, EngineRequest
from tests.kit.listening import listen
from tests.kit.models import built_once
from tests.kit.vision_model import build_vision_model
from tests.worker.vision import VisionPrompts, image
from turnwire_tools.script.engine import ScriptEngine

RED, BLUE = image("red", 640, 480), image("blue", 84, 56)
ANSWER = "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nI saw it.<|im_end|>\n"


class Stage:
    """A script engine for a vision model."""

    def __init__(self, engine: ScriptEngine, model: Path, eos: list[int]) -> None:
        self._engine = engine
        self._prompts = VisionPrompts(model, "qwen")
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._eos = eos
        self.images: list[EngineImage] = []

    async def say(
        self, *messages: tuple[str | bytes, ...] | str, cut: int | None = None, **more: Any
    ) -> str:
        """The answer to messages of the user, each of texts and images; a message that is one text
        is in the prompt as it is. `cut`: the bytes that are left of each image."""
        ids, self.images = list[int](), []
        for message in messages:
            if isinstance(message, str):
                ids += self._tokenizer.encode(message, add_special_tokens=False).ids
                continue
            one, images = self._prompts.prompt(*message, assistant=message is messages[-1])
            self.images += [msgspec.structs.replace(each, at=each.at + len(ids)) for each in images]
            ids += one
        self.images = [msgspec.structs.replace(one, data=one.data[:cut]) for one in self.images]
        request = EngineRequest(
            "t", ids, Sampling(max_tokens=500), self._eos, images=self.images, **more
        )
        found = [token async for delta in listen(self._engine, request) for token in delta.ids]
        text: str = self._tokenizer.decode(found, skip_special_tokens=False)
        return text.rpartition("</think>\n\n")[2]

    def line(self, number: int, size: str) -> str:
        """What the agent says of the image with this number."""
        return f"I see an image of {size} pixels ({self.images[number].hash[:8]})."


@pytest.fixture
async def stage(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    model = built_once(tmp_path_factory, "qwen", lambda path: build_vision_model(path, "qwen"))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "hello.txt").write_text("Hello there.")
    config = WorkerConfig(
        model=str(model), token_delay_ms=0.0, script_dir=str(tmp_path / "scripts")
    )
    engine = ScriptEngine(config)
    info = await engine.start()
    yield Stage(engine, model, info.eos_ids)
    await engine.stop(1.0)


async def test_agent_says_what_it_sees_in_the_newest_message(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED, BLUE, " Answer with the word PLUM."))
    assert text == f"{stage.line(0, '640 x 480')}\n{stage.line(1, '84 x 56')}\n\nPLUM"
    assert (await stage.say((RED,))).startswith(stage.line(0, "640 x 480")), "an image alone"


async def test_agent_says_nothing_of_images_before_its_last_answer(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED), ANSWER, ("And this? ", BLUE))
    assert text.startswith(stage.line(1, "84 x 56"))
    assert "640" not in text
    assert "I see" not in await stage.say(("Look: ", RED), ANSWER, ("Thanks.",))


async def test_agent_sees_images_in_results(stage: Stage) -> None:
    call = (
        "<|im_start|>assistant\n<tool_call>\n<function=shot>\n</function>\n</tool_call><|im_end|>\n"
    )
    text = await stage.say(
        ("Make a screenshot.",), call, ("<tool_response>\n", RED, "\n</tool_response>")
    )
    assert text == f"{stage.line(0, '640 x 480')}\n\nDone; the tool answered: (no output)"


async def test_answer_of_a_form_has_no_other_text(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED), guided=OutputFormat("json_object"))
    assert text.startswith("{")


async def test_script_is_played_for_a_message_with_an_image(stage: Stage) -> None:
    assert await stage.say((RED, "[[play hello]]")) == "Hello there."


async def test_script_is_not_played_for_a_damaged_image(stage: Stage) -> None:
    with pytest.raises(Invalid, match="Could not process image"):
        await stage.say((RED, "[[play hello]]"), cut=50)
