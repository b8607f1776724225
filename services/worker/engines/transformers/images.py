"""Images in prompts of transformers' continuous batching, which takes token ids and nothing else.

In the ids for the library, each placeholder of an image is a number above the vocabulary that
belongs to this image alone, so that the library's prefix cache tells images apart. A hook before
the model's forward pass puts the features of the vision tower in their places, and sets the
positions of models that count in three dimensions (M-RoPE).

Steps must run without CUDA graphs.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from itertools import count
from typing import Any

import torch
from cachetools import LRUCache
from msgspec import Struct
from PIL import Image

from schemas.conversation import Sampling
from schemas.errors import Invalid
from services.images.image import read_pixels
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage, EngineRequest

_FEATURE_BYTES = 512 * 1024 * 1024
"""Features that are kept: those of some hundred screenshots of a small model."""
_NUMBERS = 65_536
"""Images with a number that is kept. An image without one gets a new one, and finds no blocks in
the cache."""


class ImageFeatures(Struct, frozen=True):
    """An image as the language model gets it."""

    rows: torch.Tensor
    """One row for each placeholder."""
    shapes: Mapping[str, torch.Tensor]
    """What the model's positions depend on."""


class ImagePrompt(Struct, frozen=True):
    """A prompt with images, as the library's thread needs it."""

    ids: list[int]
    images: list[tuple[list[int], torch.Tensor]]
    """Each image's indexes of placeholders, and the row for each of them."""
    positions: torch.Tensor | None
    """(axes, tokens); None: the model counts 0, 1, 2."""
    shift: int = 0
    """What is added to the positions after the prompt."""


class ImageKey(str):
    """A request id for the library that carries the prompt. So a prompt lives as long as the
    library's own request, which goes on for a while after it was cancelled."""

    prompt: ImagePrompt

    def __new__(cls, key: str, prompt: ImagePrompt) -> "ImageKey":
        """Makes a key that equals `key`."""
        made = super().__new__(cls, key)
        made.prompt = prompt
        return made


class Images:
    """The images of one model. `look` and `prompt` are called on one thread, which is not the
    library's."""

    def __init__(self, model: Any, processor: ImageProcessor) -> None:
        self._model = model
        self._processor = processor
        self._embedding = model.get_input_embeddings()
        self._placeholder = int(model.config.image_token_id)
        self._get_positions = getattr(model.base_model, "get_rope_index", None)
        # One number for all tokens of an image: it has as many as its features, and blocks depend
        # on those before.
        self._next = count(self._embedding.num_embeddings)
        self._numbers: LRUCache[str, int] = LRUCache(_NUMBERS)
        self._features: LRUCache[str, ImageFeatures] = LRUCache(
            _FEATURE_BYTES, lambda found: found.rows.nbytes
        )
        self._step: list[tuple[int, int, int, ImagePrompt]] = []
        """(index in the batch, index in the request, tokens, prompt) of the step's requests with
        images."""
        self._hook = model.register_forward_pre_hook(self._place, with_kwargs=True)

    def look(self, image: EngineImage) -> ImageFeatures:
        """Returns the features, computed unless they are kept. Raises ValueError for data that is
        not an image."""
        found = self._features.get(image.hash)
        if found is None:
            found = self._encode(self._tensors(read_pixels(image.data)))
            with suppress(ValueError):  # larger than everything that is kept
                self._features[image.hash] = found
        return found

    def prompt(self, request: EngineRequest, features: Sequence[ImageFeatures]) -> ImagePrompt:
        """Returns the prompt of a request, with the features of its images. Raises Invalid if they
        do not fit."""
        own, ids, images = (
            list(request.token_ids),
            list(request.token_ids),
            list[tuple[list[int], torch.Tensor]](),
        )
        for image, found in zip(request.images, features, strict=True):
            span = range(image.at, min(image.at + image.tokens, len(own)))
            places = [index for index in span if own[index] == self._placeholder]
            if len(places) != len(found.rows):
                fault = f"an image has {len(places)} tokens in the prompt, and {len(found.rows)} in the model"
                raise Invalid(fault, param="messages")
            number = self._numbers.get(image.hash)
            if number is None:
                number = self._numbers[image.hash] = next(self._next)
            for index in places:
                ids[index] = number
            images.append((places, found.rows))
        kinds = [int(number != token) for number, token in zip(ids, own, strict=True)]
        positions, shift = self._positions(own, kinds, features)
        if self._model.device.type != "cpu":
            torch.accelerator.synchronize()  # the library's steps run in a stream of their own
        return ImagePrompt(ids, images, positions, shift)

    def follow(self, inputs: Any) -> None:
        """Notes the requests of each step. `inputs`: the library's object that prepares a batch's
        tensors."""
        prepare = inputs.prepare_batch_tensors

        def observed(requests_in_batch: Sequence[Any], *args: Any, **options: Any) -> None:
            self._step, start = [], 0
            for request in requests_in_batch:
                if isinstance(key := request.state.request_id, ImageKey):
                    self._step.append(
                        (start, request.state.position_offset, request.query_length, key.prompt)
                    )
                start += request.query_length
            prepare(requests_in_batch, *args, **options)

        inputs.prepare_batch_tensors = observed

    def gap(self) -> str | None:
        """Compares a forward pass with the model's own, over a small image. Returns why the model's
        images cannot be batched; None: they can."""
        try:
            fault = self._compare()
        except Exception as error:
            fault = f"the model's forward pass with an image fails: {type(error).__name__}: {error}"
        if fault is not None:
            self._hook.remove()
        return fault

    def _compare(self) -> str | None:
        tensors = self._tensors(Image.radial_gradient("L").resize((96, 64)).convert("RGB"))
        found = self._encode(tensors)
        ids = [1, *[self._placeholder] * len(found.rows), 1, 1]
        image = EngineImage("", at=1, tokens=len(found.rows), data=b"")
        prompt = self.prompt(EngineRequest("", ids, Sampling(), [], images=[image]), [found])
        own, new = self._tensor([ids]), self._tensor([prompt.ids])
        kinds = (new != own).int()
        named = {"input_ids": own, "mm_token_type_ids": kinds, "token_type_ids": kinds, **tensors}
        with torch.no_grad():
            expected = self._model(**_accepted(self._model.forward, named)).logits
            self._step = [(0, 0, len(ids), prompt)]
            logits = self._model(input_ids=new, position_ids=self._tensor([range(len(ids))])).logits
            self._step = []
        if torch.allclose(logits, expected, rtol=0.01, atol=0.01 * float(expected.std())):
            return None
        return "the model reads images in several layers, or their tokens see later ones, which its batches cannot do"

    def _tensors(self, image: Image.Image) -> dict[str, torch.Tensor]:
        found = self._processor.inputs([image])
        return {
            name: value.to(self._model.device)
            for name, value in found.items()
            if isinstance(value, torch.Tensor)
        }

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, device=self._model.device)

    def _encode(self, tensors: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """Runs the vision tower."""
        encode = self._model.get_image_features
        with torch.no_grad():
            output = encode(**_accepted(encode, tensors))
        output = getattr(output, "pooler_output", output)
        rows = output if isinstance(output, torch.Tensor) else torch.cat(list(output))
        shapes = {} if self._get_positions is None else _accepted(self._get_positions, tensors)
        return ImageFeatures(
            rows.reshape(-1, rows.shape[-1]).to(self._embedding.weight.dtype), shapes
        )

    def _positions(
        self, ids: list[int], kinds: list[int], features: Sequence[ImageFeatures]
    ) -> tuple[torch.Tensor | None, int]:
        if self._get_positions is None:
            return None, 0
        named = {
            name: torch.cat([found.shapes[name] for found in features])
            for name in features[0].shapes
        }
        named |= {"input_ids": self._tensor([ids]), "mm_token_type_ids": self._tensor([kinds])}
        positions, shift = self._get_positions(**_accepted(self._get_positions, named))
        return positions[:, 0], int(shift)

    def _place(
        self, model: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Any] | None:
        """The hook: replaces ids by rows of the embedding and of images, and positions by those of
        the prompts."""
        if not self._step:
            return None
        ids, positions = named.pop("input_ids"), named["position_ids"]
        rows = self._embedding(ids.clamp(max=self._embedding.num_embeddings - 1))
        if (some := self._step[0][3].positions) is not None:
            positions = positions.expand(len(some), *positions.shape).clone()
        for start, first, tokens, prompt in self._step:
            for places, own in prompt.images:
                low, high = bisect_left(places, first), bisect_left(places, first + tokens)
                if low < high:
                    rows[0, [start - first + place for place in places[low:high]]] = own[low:high]
            if prompt.positions is not None:
                read = prompt.positions[:, first : first + tokens]
                after = start + read.shape[1]
                positions[:, 0, start:after] = read
                positions[:, 0, after : start + tokens] += prompt.shift
        return args, {**named, "inputs_embeds": rows, "position_ids": positions}


def _accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that `function` has a parameter for."""
    parameters = signature(function).parameters
    return {name: value for name, value in values.items() if name in parameters}
