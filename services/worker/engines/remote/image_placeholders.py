"""Images for servers that take their data, and expand one placeholder to an image's tokens.

The prompt has the expanded tokens already, so each image's are replaced by one placeholder. Servers
report what they made of it, and the judge compares (`answer.py`).
"""

from base64 import b64encode
from collections.abc import Sequence

from services.runtime.config.stages import WorkerConfig
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage
from services.worker.engines.trial import image_trial


class ImagePlaceholders:
    """Expands the placeholders of images, for one model."""

    def __init__(self, processor: ImageProcessor) -> None:
        self._placeholder = processor.placeholder_id
        self.trial = image_trial(processor)
        """A request with an image."""

    @classmethod
    def load(cls, config: WorkerConfig) -> "ImagePlaceholders":
        """Reads the model's processor. Raises NoVision if there is none."""
        return cls(ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code))

    def with_placeholders(self, ids: Sequence[int], images: Sequence[EngineImage]) -> list[int]:
        """The prompt with one placeholder for each of its images."""
        short: list[int] = []
        at = 0
        for image in images:
            short += [*ids[at : image.at], self._placeholder]
            at = image.at + image.tokens
        return [*short, *ids[at:]]


def data_url(image: EngineImage) -> str:
    """The image's data as a URL. Servers find its format out themselves."""
    return f"data:image/png;base64,{b64encode(image.data).decode()}"
