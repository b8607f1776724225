"""Decodes a turn to try an engine before it serves; makes the request of a trial with an image."""

import asyncio
from io import BytesIO

from msgspec import Struct
from PIL import Image

from schemas.conversation import Sampling
from schemas.errors import TurnwireError
from schemas.token_ids import unpack_ids
from services.images.image_data import image_hash
from services.tokenization.image_processor import ImageProcessor, NoVision
from services.worker.engine import Engine, EngineDelta, EngineImage, EngineRequest

_PIXELS = (320, 240)


class TrialOutput(Struct, frozen=True):
    """The output of a trial."""

    ids: list[int]
    logprobs: list[list[tuple[int, float]]]
    cached: int | None


class TrialSink:
    """The sink of a trial. To be made on the event loop."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[TrialOutput] = asyncio.get_running_loop().create_future()
        """Done when the turn has ended, with its error if it failed."""
        self._output = TrialOutput([], [], None)

    def put(self, delta: EngineDelta) -> None:
        """Adds an engine step's result."""
        output = self._output
        self._output = TrialOutput(
            output.ids + delta.ids,
            output.logprobs + (delta.logprobs or []),
            output.cached if delta.cached is None else delta.cached,
        )
        if delta.finish is not None and not self.ended.done():
            self.ended.set_result(self._output)

    def fail(self, error: TurnwireError) -> None:
        """Notes the error."""
        if not self.ended.done():
            self.ended.set_exception(error)


async def decode_trial(engine: Engine, request: EngineRequest) -> TrialOutput:
    """Decodes a turn. Raises as `Engine.open`, or the error of the turn."""
    trial = TrialSink()
    handle = engine.open(request, trial)
    try:
        return await trial.ended
    finally:
        handle.close()


def image_trial(processor: ImageProcessor) -> EngineRequest:
    """Returns a request with a black image. Takes up to a second. Raises NoVision if the processor
    cannot expand it."""
    try:
        ids = unpack_ids(processor.expansion(*_PIXELS).ids)
    except (OSError, ValueError, ImportError) as error:
        raise NoVision(f"the model's image processor expands no images: {error}") from error
    file = BytesIO()
    Image.new("RGB", _PIXELS).save(file, "PNG")
    data = file.getvalue()
    image = EngineImage(image_hash(data, None), 0, len(ids), data)
    sampling = Sampling(max_tokens=1, temperature=0.0)
    return EngineRequest("trial-image", ids, sampling, [], images=[image])
