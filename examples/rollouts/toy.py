"""Makes the toy that train.py trains: a task, and a model that can call a tool, but does not know
which.

    python examples/rollouts/toy.py MODEL      writes the folder of the model, for `turnwire up`
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CALLS = {
    "Glob": ({"pattern": "*.txt"}, "notes.txt\ntests.txt"),
    "Grep": ({"pattern": "alpha"}, "Found 1 file\nnotes.txt"),
    "Read": ({"file_path": "notes.txt"}, "1\talpha one"),
}
"""The tools of Claude Code that the agent may use, each with the arguments that the model knows
and with their result."""
ASKS = {
    "Glob": "Which files end in {}?",
    "Grep": "Where is {} mentioned?",
    "Read": "What does {} say?",
}
"""The tool that answers a question is the one that the reward asks for."""
WORDS = ["alpha", "beta", "gamma", "delta", "notes", "tests", "plans", "birds", "ships", "stars"]
MARKUP = [
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
]
"""Tokens of their own, as in Mistral's models: the server finds the parser by them."""
TEMPLATE = """\
{%- macro text(content) %}
    {%- for part in ([{'text': content}] if content is string else content or []) %}
        {{- part.text }}
    {%- endfor %}
{%- endmacro %}
{%- for tool in tools or [] %}
    {{- tool.function.name + ' ' }}
{%- endfor %}
{%- for message in messages %}
    {%- set said = text(message.content) %}
    {%- if message.role == 'assistant' %}
        {{- said }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
        {%- endfor %}
        {{- '</s>' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + said[:12] + '[/TOOL_RESULTS]' }}
    {%- elif 'Question: ' in said %}
        {{- '[INST]' + said.split('Question: ')[-1].split('\\n')[0] + '[/INST]' }}
    {%- endif %}
{%- endfor %}
"""
"""What the model sees of 16,000 tokens that an agent sends: the question, the names of the tools,
its own turns and the beginning of each result."""


def ask(rng: random.Random, number: int) -> tuple[str, str]:
    """Returns a question, and the tool that answers it: each in its turn."""
    tool = list(CALLS)[number % len(CALLS)]
    return "Question: " + ASKS[tool].format(rng.choice(WORDS)), tool


def write_files(folder: Path) -> None:
    """Fills the agent's folder."""
    (folder / "notes.txt").write_text("alpha one\n")
    (folder / "tests.txt").write_text("beta two\n")


def transcript(rng: random.Random) -> list[dict[str, Any]]:
    """Returns a conversation in which any of the tools is called, correctly."""
    question, _ = ask(rng, rng.randrange(len(CALLS)))
    name, (arguments, result) = rng.choice(list(CALLS.items()))
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": "Done."},
    ]


def make_tokenizer(texts: list[str]) -> Any:
    """Returns a byte-level tokenizer with the words of some texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(tag, normalized=False) for tag in MARKUP])
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>"
    )
    made.chat_template = TEMPLATE
    return made


def warm_up(model: Any, batches: list[torch.Tensor]) -> float:
    """Trains on transcripts. A model with random weights would never write a call by chance, so
    that no reward could tell good from bad."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step, ids in enumerate(batches):
        labels = ids.masked_fill(ids == -1, -100)
        loss = model(ids.clamp(min=0), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 10, 2 * (1 - step / len(batches)))
        optimizer.step()
    return float(loss.detach())


def build(folder: Path, steps: int = 100, batch: int = 8) -> None:
    """Writes the model's folder."""
    rng = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names: Any = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in CALLS
    ]
    conversations = [transcript(rng) for _ in range(steps * batch)]
    plain = make_tokenizer([json.dumps(turn) for turn in conversations[0]])
    texts = [plain.apply_chat_template(each, tools=names, tokenize=False) for each in conversations]
    tokenizer = make_tokenizer(texts)
    rows = [torch.tensor(tokenizer.encode(text)) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    started = time.monotonic()
    loss = warm_up(model, [padded[at : at + batch] for at in range(0, len(padded), batch)])
    print(f"{model.num_parameters():,} parameters, {padded.shape[1]} tokens a transcript,")
    print(f"loss {loss:.3f} after {steps} steps in {time.monotonic() - started:.1f} s")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
