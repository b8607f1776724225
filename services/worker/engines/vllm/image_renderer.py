"""Makes vLLM's input of prompts with images: its processor's tensors, and the places of the images
in the prompt.

vLLM replaces the first placeholders of a prompt, also those in a prompt that is already expanded or
that belong to its text. So it gets a prompt of placeholders only, and the places of what it makes
of them are moved into the real one. A wrong place would end vLLM's process: the tokens of each must
be equal.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from schemas.errors import EngineFailed, Invalid
from services.images.image_data import UnreadableImage, read_pixels
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage, EngineRequest
from services.worker.engines.trial import image_trial


class ImageRenderer:
    """Renders one prompt at a time, on a thread: vLLM's cache of processed images must be used in
    the order of the requests, and decoded images are large."""

    def __init__(self, llm: Any, processor: ImageProcessor) -> None:
        """`llm`: an `AsyncLLM`. Raises what vLLM raises for a model that takes no images, and
        EngineFailed if vLLM and the processor expand an image differently."""
        self._renderer = llm.renderer
        self._placeholder: int = llm.get_tokenizer().convert_tokens_to_ids(processor.placeholder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-images")
        trial = image_trial(processor)
        self._render(list(trial.token_ids), trial)

    async def render(self, ids: list[int], request: EngineRequest) -> Any:
        """Returns the input for `AsyncLLM.generate`. `ids`: the request's prompt. Raises Invalid
        for a damaged image, EngineFailed if vLLM expands the images differently."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._render, ids, request
        )

    def close(self) -> None:
        """Discards the prompts that wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _render(self, ids: list[int], request: EngineRequest) -> Any:
        images = request.images
        hashes = [image.hash for image in images]
        prompt = {
            "prompt_token_ids": [self._placeholder] * len(images),
            "multi_modal_data": {"image": self._pixels(images)},
            "multi_modal_uuids": {"image": hashes},
            "cache_salt": request.cache_salt,
        }
        (rendered,) = self._renderer.render_cmpl([prompt])

        expanded = rendered["prompt_token_ids"]
        places = rendered["mm_placeholders"]["image"]
        theirs = [expanded[place.offset : place.offset + place.length] for place in places]
        ours = [ids[image.at : image.at + image.tokens] for image in images]
        if theirs != ours or rendered["mm_hashes"]["image"] != hashes:
            raise EngineFailed("vLLM and the model's processor expand the images differently")

        moved = [
            dataclasses.replace(place, offset=image.at)
            for place, image in zip(places, images, strict=True)
        ]
        return rendered | {"prompt_token_ids": ids, "mm_placeholders": {"image": moved}}

    def _pixels(self, images: Sequence[EngineImage]) -> list[Any]:
        """Returns the pixels of images; None in place of those that vLLM has in its cache."""
        cache = self._renderer.mm_processor_cache
        cached = [False] * len(images)
        if cache is not None:
            cached = cache.is_cached([image.hash for image in images])
        pixels: list[Any] = [None] * len(images)
        try:
            for number, image in enumerate(images):
                if not cached[number]:
                    pixels[number] = read_pixels(image.data)
        except UnreadableImage as error:
            raise Invalid(str(error)) from error
        return pixels
