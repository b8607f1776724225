"""Images for servers that take their data, and expand one placeholder to an image's tokens. Pure,
apart from `open_image_prompts`, which reads the model's files.

The prompt has the expanded tokens already, so each image's are replaced by one placeholder. Servers
report what they made of it, and the judge compares (`answer.py`).
"""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

from PIL import Image

from schemas.conversation import Sampling
from schemas.token_ids import unpack_ids
from services.images.image import image_hash
from services.runtime.config.stages import WorkerConfig
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage, EngineRequest

_TRIAL = (320, 240)
"""Pixels of the image of the trial."""


class ImagePrompts:
    """What takes the place of images, for one model."""

    def __init__(self, processor: ImageProcessor) -> None:
        self._placeholder = processor.placeholder_id
        self._trial_ids = unpack_ids(processor.expansion(*_TRIAL).ids)

    def with_placeholders(self, ids: Sequence[int], images: Sequence[EngineImage]) -> list[int]:
        """The prompt with one placeholder for each of its images."""
        short: list[int] = []
        at = 0
        for image in images:
            short += [*ids[at : image.at], self._placeholder]
            at = image.at + image.tokens
        return [*short, *ids[at:]]

    def trial(self) -> EngineRequest:
        """A request with an image."""
        file = BytesIO()
        Image.new("RGB", _TRIAL).save(file, "PNG")
        data = file.getvalue()
        image = EngineImage(image_hash(data, None), 0, len(self._trial_ids), data)
        sampling = Sampling(max_tokens=1, temperature=0.0)
        return EngineRequest("trial-image", self._trial_ids, sampling, [], images=[image])


def open_image_prompts(config: WorkerConfig) -> ImagePrompts:
    """Reads the model's processor. Raises ValueError, OSError or ImportError, with the reason, if
    there is none."""
    processor = ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)
    if processor is None:
        raise ValueError("the model has no vision")
    return ImagePrompts(processor)


def data_url(image: EngineImage) -> str:
    """The image's data as a URL. Servers find its format out themselves."""
    return f"data:image/png;base64,{b64encode(image.data).decode()}"
