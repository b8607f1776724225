"""`python -m bench.random_model DIR`: makes a model with random weights, and the demo's tokenizer
and template.

It is large enough that a prefill takes time, but small enough for the machine: the work of an
engine and the savings of its cache do not depend on trained weights.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwire_tools.script.demo_model import build_demo_model

WINDOW = 65_536


def build_random_model(
    path: Path, *, hidden: int = 64, layers: int = 2, window: int = WINDOW
) -> Path:
    """Writes the model's directory; needs torch. `hidden`: width, a multiple of 64."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    build_demo_model(path)
    torch.manual_seed(0)
    heads = hidden // 64
    config = Qwen3Config(
        vocab_size=len(AutoTokenizer.from_pretrained(path)),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=64,
        max_position_embeddings=window,
        tie_word_embeddings=False,  # else a model with random weights repeats its last token
    )
    generation = (path / "generation_config.json").read_bytes()
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: torch.nn.Module = Qwen3ForCausalLM(config)
    if torch.cuda.is_available():
        model = model.to(torch.bfloat16)
    model.save_pretrained(path)  # type: ignore[operator]
    (path / "generation_config.json").write_bytes(generation)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.random_model", description=__doc__)
    parser.add_argument("path", type=Path, metavar="DIR")
    parser.add_argument(
        "--hidden", type=int, default=256, help="width; 4096 for the size of an 8B model"
    )
    parser.add_argument("--layers", type=int, default=2, help="36 for the size of an 8B model")
    asked = parser.parse_args(argv)
    print(build_random_model(asked.path, hidden=asked.hidden, layers=asked.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
