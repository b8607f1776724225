"""Makes a request with an image, to try an engine."""

from io import BytesIO

from PIL import Image

from schemas.conversation import Sampling
from schemas.token_ids import unpack_ids
from services.images.image import image_hash
from services.tokenization.image_processor import ImageProcessor, NoVision
from services.worker.engine import EngineImage, EngineRequest

_PIXELS = (320, 240)


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
