"""What the scripted agent sees."""

import pytest
from tokenizers import Tokenizer

from schemas.conversation import Sampling
from services.runtime.config import WorkerConfig
from services.worker.engine import EngineRequest
from tests.kit.listening import listen
from tests.kit.models import built_once
from tests.kit.vision_model import build_vision_model
from tests.worker.vision import VisionPrompts, image
from turnwire_tools.script.engine import ScriptEngine


async def test_agent_says_what_it_sees(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = built_once(tmp_path_factory, "qwen", lambda path: build_vision_model(path, "qwen"))
    engine = ScriptEngine(WorkerConfig(model=str(model), token_delay_ms=0.0))
    info = await engine.start()
    asked = ("Look: ", image("red", 640, 480), image("blue", 84, 56), " Answer with the word PLUM.")
    ids, images = VisionPrompts(model, "qwen").prompt(*asked)
    request = EngineRequest("t", ids, Sampling(max_tokens=500), info.eos_ids, images=images)
    said = [token async for delta in listen(engine, request) for token in delta.ids]
    await engine.stop(1.0)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = tokenizer.decode(said, skip_special_tokens=False).rpartition("</think>\n\n")[2]
    one, two = (image.hash[:8] for image in images)
    assert text == (
        f"I see an image of 640 x 480 pixels ({one}).\n"
        f"I see an image of 84 x 56 pixels ({two}).\n\nPLUM"
    )
