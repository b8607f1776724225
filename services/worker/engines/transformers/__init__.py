"""The transformers engine: continuous batching of any causal LM, on a CPU or a GPU."""
