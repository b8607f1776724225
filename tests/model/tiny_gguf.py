"""A tiny model of random weights in a GGUF file."""

import json
from pathlib import Path

import numpy

VOCABULARY = 512
WINDOW = 4096
LAYERS, WIDTH, HEADS, KV_HEADS, INNER = 2, 64, 4, 2, 128


def write_tiny(folder: Path) -> Path:
    """Writes a Llama of two layers with random weights in 32 bits, end tokens 5 and 7, its
    config.json and its tokenizer.

    It decodes in microseconds, and the same in every batch.
    """
    import gguf
    from tokenizers import Tokenizer, decoders, models

    texts = [f"t{token}" for token in range(VOCABULARY)]
    folder.mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(5)
    rng = numpy.random.default_rng(3)

    def add(name: str, *shape: int) -> None:
        ones = len(shape) == 1
        values = numpy.ones(shape) if ones else rng.normal(scale=shape[-1] ** -0.5, size=shape)
        writer.add_tensor(f"{name}.weight", values.astype(numpy.float32))

    kv_width = WIDTH // HEADS * KV_HEADS
    add("token_embd", VOCABULARY, WIDTH)
    add("output", VOCABULARY, WIDTH)
    add("output_norm", WIDTH)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.attn_q", WIDTH, WIDTH)
        add(f"blk.{layer}.attn_k", kv_width, WIDTH)
        add(f"blk.{layer}.attn_v", kv_width, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = {"vocab_size": VOCABULARY, "eos_token_id": [5, 7], "max_position_embeddings": WINDOW}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(texts)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
