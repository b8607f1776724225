"""Tiny vision models with random weights: the demo's tokenizer and two schemes of placeholders.

`qwen` (Qwen2.5-VL) is the demo model with vision: an image is `<|vision_start|>`, one
`<|image_pad|>` for each token, `<|vision_end|>`, which the chat template writes. `idefics`
(Idefics3): rows and tiles with tokens of their own, which the processor writes.
"""

import json
import random
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from PIL import Image

from turnwire_tools.script.demo_model import build_demo_model

Scheme = Literal["qwen", "idefics"]

_IDEFICS_TOKENS = [
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]


def build_vision_model(
    path: Path, scheme: Scheme = "qwen", *, weights: bool = False, window: int = 8192
) -> Path:
    """Writes a directory with tokenizer, processor, chat template and configuration; `weights`:
    also random ones."""
    import transformers

    build_demo_model(path, vision=scheme == "qwen")
    generation = (path / "generation_config.json").read_bytes()
    config = transformers.AutoConfig.from_pretrained(path)
    if scheme == "idefics":
        _write_template(path, "<image>")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        tokenizer.add_special_tokens({"additional_special_tokens": _IDEFICS_TOKENS})
        tokenizer.save_pretrained(path)
        config = _idefics(path, tokenizer)
    config.text_config.max_position_embeddings = window
    own = json.loads((path / "config.json").read_bytes())
    kept = {"eos_token_id": own["eos_token_id"], "pad_token_id": own["pad_token_id"]}
    if weights:
        import torch

        torch.manual_seed(0)
        kind: Any = getattr(transformers, config.architectures[0])
        kind(config).to(torch.float32).eval().save_pretrained(path)
    else:
        config.save_pretrained(path)
    saved = json.loads((path / "config.json").read_bytes())
    (path / "config.json").write_text(json.dumps(saved | kept, indent=2) + "\n")
    (path / "generation_config.json").write_bytes(generation)
    return path


def reference_processor(path: Path, scheme: Scheme) -> Any:
    """The library's own processor. That of Qwen-VL needs torchvision for videos, so they are left
    out."""
    import transformers

    library: Any = transformers
    if scheme == "idefics":
        return library.Idefics3Processor.from_pretrained(path)

    class ImagesOnly(transformers.Qwen2_5_VLProcessor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return None

    made: Any = ImagesOnly
    return made(
        image_processor=library.AutoImageProcessor.from_pretrained(path),
        tokenizer=library.AutoTokenizer.from_pretrained(path),
        video_processor=SimpleNamespace(merge_size=2, model_input_names=[]),
    )


def noise(width: int, height: int, seed: int | str) -> Image.Image:
    """An image of random pixels, the same for the same seed."""
    return Image.frombytes(
        "RGB", (width, height), random.Random(seed).randbytes(3 * width * height)
    )


def png(width: int, height: int, seed: int | str) -> bytes:
    """The same as PNG data."""
    out = BytesIO()
    noise(width, height, seed).save(out, "PNG")
    return out.getvalue()


def _text_config(tokenizer: Any, *, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
    }


def _idefics(path: Path, tokenizer: Any) -> Any:
    import transformers

    document = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "size": {"longest_edge": 224},
        "max_image_size": {"longest_edge": 56},
    }
    (path / "preprocessor_config.json").write_text(json.dumps(document, indent=2) + "\n")
    (path / "processor_config.json").write_text(
        json.dumps({"image_seq_len": 4, "processor_class": "Idefics3Processor"}, indent=2) + "\n"
    )
    return transformers.Idefics3Config(
        architectures=["Idefics3ForConditionalGeneration"],
        # vLLM on a CPU computes heads of 32 or more
        text_config=_text_config(tokenizer, heads=2) | {"model_type": "llama"},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
            "patch_size": 14,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )


def _write_template(path: Path, image: str) -> None:
    """Adds images to the demo's chat template, in users' messages and in results."""
    file = path / "chat_template.jinja"
    text = "{{- part.text }}"
    shown = f"{{%- if part.type == 'image' %}}{{{{- '{image}' }}}}{{%- else %}}{text}{{%- endif %}}"
    file.write_text(file.read_text().replace(text, shown, 1))
