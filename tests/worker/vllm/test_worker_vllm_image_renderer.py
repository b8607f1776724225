"""Images in the vLLM engine, over a small strict fake."""

from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL import Image

from schemas.errors import EngineFailed, Invalid
from schemas.token_ids import unpack_ids
from services.images.image_data import image_hash
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineImage, EngineRequest
from services.worker.engines.vllm.engine import VllmEngine
from tests.kit import engines
from tests.kit.engines import run
from tests.kit.every import Cases
from tests.kit.listening import Listener
from tests.kit.waiting import eventually
from tests.worker.fake_vllm import SIZE

BEFORE = list(range(8, 30))


pytestmark = pytest.mark.parametrize("vision_dir", ["idefics"], indirect=True)


@pytest.fixture
async def engine(fake_vllm: Any, vision_dir: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(WorkerConfig(model=str(vision_dir), slots=4, max_model_len=1024))
    assert "vision" in (await engine.start()).features
    yield engine
    await engine.stop(5.0)


def png(color: int) -> bytes:
    Image.new("RGB", SIZE, (color, 0, 0)).save(made := BytesIO(), "PNG")
    return made.getvalue()


def request(fake_vllm: Any, *data: bytes, turn: str = "t") -> EngineRequest:
    expansion = unpack_ids(fake_vllm.last.renderer.processor.expansion(*SIZE).ids)
    placeholder = fake_vllm.last.renderer.tokenizer.convert_tokens_to_ids("<image>")
    ids, images = [*BEFORE, placeholder], []  # one that is text
    for one in data:
        images.append(EngineImage(image_hash(one, None), len(ids), len(expansion), one))
        ids += [*expansion, 9]
    return engines.request(turn, ids, max_tokens=8, cache_salt="salt", images=images)


async def test_a_wrong_image_fails_alone(engine: VllmEngine, fake_vllm: Any, cases: Cases) -> None:
    made = request(fake_vllm, png(1))
    (image,) = made.images
    later = replace(image, at=image.at + 1, tokens=image.tokens - 1)
    damaged = replace(image, hash="0" * 40, data=b"GIF89a")
    many = request(fake_vllm, png(1), png(2), png(3)).images
    for wrong, error, why in [
        ([later], EngineFailed, "differently"),
        ([damaged], Invalid, "Could not process image"),
        (many, Invalid, "At most 2"),
    ]:
        with cases.case(why), pytest.raises(error, match=why):
            await run(engine, replace(made, images=wrong))
    for data in (image.data, b"not decoded, as it was sent before"):
        assert len(await run(engine, replace(made, images=[replace(image, data=data)]))) == 8


async def test_closing_before_vllm_has_the_request_leaves_nothing(
    engine: VllmEngine, fake_vllm: Any
) -> None:
    renderer = fake_vllm.last.renderer
    renderer.gate.clear()
    listener = Listener()
    handle = engine.open(request(fake_vllm, png(1)), listener)
    listener.opened = True
    await eventually(lambda: renderer.waiting)
    handle.close()
    assert engine.load().running == 0
    renderer.gate.set()
    await eventually(lambda: len(renderer.processed) == 2)  # the trial's image and this one
    assert (fake_vllm.last.requests, fake_vllm.last.aborted, listener.error) == ([], [], None)
    # The renderer believes that vLLM has the image, which was not sent.
    assert len(await run(engine, request(fake_vllm, png(1)))) == 8
