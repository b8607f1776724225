"""A vision model's processor: what takes an image's place in the prompt, and the tensors that its
model reads.

The library defines both. How many tokens an image has depends only on its size, so a preprocessor
asks with a blank image of that size, and needs neither the data nor torch.
"""

from threading import Lock
from typing import Any

from cachetools import LRUCache
from msgspec import Struct
from PIL import Image

from schemas.token_ids import pack_ids
from services.tokenization.model_files import read_json

_SIZES = 1024
"""The number of cached expansions, each for a size: one takes some milliseconds, and agents send
many screenshots of the same size."""


class Expansion(Struct, frozen=True):
    """The text and tokens that replace one placeholder."""

    text: str
    """Placeholders, and between them what the model has for rows and tiles."""
    ids: bytes
    """Its tokens (`token_ids.pack_ids`)."""


class NoVision(ValueError):
    """Why a model gets no images."""


class TextModel(NoVision):
    """The model was made for text alone."""


class ImageProcessor:
    """One model's processor, from its directory. Thread-safe."""

    def __init__(self, processor: Any) -> None:
        """`processor`: one of transformers' own, with `image_token` and `image_processor`."""
        self._processor = processor
        self._expansions: LRUCache[tuple[int, int], Expansion] = LRUCache(_SIZES)
        self._lock = Lock()
        self.placeholder: str = processor.image_token
        """The token that fills most of an expansion."""

    @classmethod
    def load(cls, model: str, *, trust_remote_code: bool = False) -> "ImageProcessor":
        """The processor of a model directory or hub id. Raises NoVision, with the reason, if there
        is none that can be loaded."""
        try:
            config = read_json(model, "config.json") or {}
            if "vision_config" not in config:
                raise TextModel("the model sees no images")
            processor = _load(model, trust_remote_code=trust_remote_code)
        except NoVision:
            raise
        except (OSError, ValueError, ImportError) as error:
            raise NoVision(f"the model's image processor cannot be loaded: {error}") from error
        has_token = isinstance(getattr(processor, "image_token", None), str)
        if not has_token or not hasattr(processor, "image_processor"):
            raise NoVision("the model's image processor has no token that stands for an image")
        return cls(processor)

    @property
    def placeholder_id(self) -> int:
        """The id of `placeholder`."""
        return int(self._processor.tokenizer.convert_tokens_to_ids(self.placeholder))

    def knows(self, width: int, height: int) -> bool:
        """Whether `expansion` takes no time for this size."""
        return (width, height) in self._expansions

    def expansion(self, width: int, height: int) -> Expansion:
        """The text and tokens that replace the placeholder of an image of this size in pixels.
        Takes up to a second for a new size. Raises ValueError for a size that the processor
        refuses."""
        with self._lock:
            expansion = self._expansions.get((width, height))
            if expansion is None:
                expansion = self._expand(width, height)
                self._expansions[width, height] = expansion
            return expansion

    def inputs(self, images: list[Image.Image]) -> dict[str, Any]:
        """The tensors (PyTorch) of these images that the model's forward pass reads beside ids:
        `pixel_values` and what belongs to them."""
        with self._lock:
            tensors = self._processor.image_processor(
                images=[[image] for image in images], return_tensors="pt"
            )
        return dict(tensors)

    def _expand(self, width: int, height: int) -> Expansion:
        blank = Image.new("RGB", (width, height))
        processed = self._processor(
            text=[self.placeholder], images=[[blank]], return_text_replacement_offsets=True
        )
        ((replacement,),) = processed["text_replacement_offsets"]
        text = str(replacement["replacement"])
        return Expansion(
            text, pack_ids(self._processor.tokenizer(text, add_special_tokens=False)["input_ids"])
        )


class _NoVideo:
    """Stands for a video processor, which most processors need at their construction and which
    needs torchvision."""

    merge_size = 1
    model_input_names: tuple[str, ...] = ()


def _load(model: str, *, trust_remote_code: bool) -> Any:
    import transformers
    from transformers.utils.import_utils import is_torchvision_available

    library: Any = transformers
    files = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
    names = [(read_json(model, file) or {}).get("processor_class") for file in files]
    processor_class = getattr(library, next(filter(None, names), ""), None)
    if (
        is_torchvision_available()
        or processor_class is None
        or "video_processor" not in processor_class.get_attributes()
    ):
        return library.AutoProcessor.from_pretrained(model, trust_remote_code=trust_remote_code)
    image_processor = library.AutoImageProcessor.from_pretrained(
        model, trust_remote_code=trust_remote_code
    )
    tokenizer = library.AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)

    def check(self: Any, name: str, argument: Any) -> Any:
        """Lets the missing video processor pass."""
        if name == "video_processor":
            return None
        return processor_class.check_argument_for_proper_class(self, name, argument)

    images_only = type(
        processor_class.__name__,
        (processor_class,),
        {"check_argument_for_proper_class": check, "__module__": processor_class.__module__},
    )
    return images_only(
        image_processor=image_processor, tokenizer=tokenizer, video_processor=_NoVideo()
    )
