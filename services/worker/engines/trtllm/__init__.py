"""The TensorRT-LLM engine."""
