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
from services.worker.engine import EnginePicture, EngineRequest
from tests.vision_model import build_vision_model
from tests.worker.listening import listen
from tests.worker.vision import VisionPrompts, picture
from turnwire_tools.script.engine import ScriptEngine

RED, BLUE = picture("red", 640, 480), picture("blue", 84, 56)
ANSWER = "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nI saw it.<|im_end|>\n"


class Stage:
    """A script engine for a vision model."""

    def __init__(self, engine: ScriptEngine, model: Path, eos: list[int]) -> None:
        self._engine = engine
        self._prompts = VisionPrompts(model, "qwen")
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._eos = eos
        self.pictures: list[EnginePicture] = []

    async def say(self, *messages: tuple[str | bytes, ...] | str, cut: int | None = None, **more: Any) -> str:
        """The answer to messages of the user, each of texts and pictures; a message that is one text is in the prompt
        as it is. `cut`: the bytes that are left of each picture."""
        ids, self.pictures = list[int](), []
        for message in messages:
            if isinstance(message, str):
                ids += self._tokenizer.encode(message, add_special_tokens=False).ids
                continue
            one, pictures = self._prompts.prompt(*message, assistant=message is messages[-1])
            self.pictures += [msgspec.structs.replace(each, at=each.at + len(ids)) for each in pictures]
            ids += one
        self.pictures = [msgspec.structs.replace(one, data=one.data[:cut]) for one in self.pictures]
        request = EngineRequest("t", ids, Sampling(max_tokens=500), self._eos, pictures=self.pictures, **more)
        found = [token async for delta in listen(self._engine, request) for token in delta.ids]
        text: str = self._tokenizer.decode(found, skip_special_tokens=False)
        return text.rpartition("</think>\n\n")[2]

    def line(self, number: int, size: str) -> str:
        """What the agent says of the picture with this number."""
        return f"I see an image of {size} pixels ({self.pictures[number].hash[:8]})."


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    model = build_vision_model(tmp_path / "model")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "hello.txt").write_text("Hello there.")
    config = WorkerConfig(model=str(model), token_delay_ms=0.0, script_dir=str(tmp_path / "scripts"))
    engine = ScriptEngine(config)
    info = await engine.start()
    yield Stage(engine, model, info.eos_ids)
    await engine.stop(1.0)


async def test_agent_says_what_it_sees_in_the_newest_message(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED, BLUE, " Answer with the word PLUM."))
    assert text == f"{stage.line(0, '640 x 480')}\n{stage.line(1, '84 x 56')}\n\nPLUM"
    assert (await stage.say((RED,))).startswith(stage.line(0, "640 x 480")), "a picture alone"


async def test_agent_says_nothing_of_pictures_before_its_last_answer(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED), ANSWER, ("And this? ", BLUE))
    assert text.startswith(stage.line(1, "84 x 56"))
    assert "640" not in text
    assert "I see" not in await stage.say(("Look: ", RED), ANSWER, ("Thanks.",))


async def test_agent_sees_pictures_in_results(stage: Stage) -> None:
    call = "<|im_start|>assistant\n<tool_call>\n<function=shot>\n</function>\n</tool_call><|im_end|>\n"
    text = await stage.say(("Make a screenshot.",), call, ("<tool_response>\n", RED, "\n</tool_response>"))
    assert text == f"{stage.line(0, '640 x 480')}\n\nDone; the tool answered: (no output)"


async def test_answer_of_a_form_has_no_other_text(stage: Stage) -> None:
    text = await stage.say(("Look: ", RED), guided=OutputFormat("json_object"))
    assert text.startswith("{")


async def test_script_is_played_for_a_message_with_a_picture(stage: Stage) -> None:
    assert await stage.say((RED, "[[play hello]]")) == "Hello there."


async def test_script_is_not_played_for_a_damaged_picture(stage: Stage) -> None:
    with pytest.raises(Invalid, match="Could not process image"):
        await stage.say((RED, "[[play hello]]"), cut=50)
