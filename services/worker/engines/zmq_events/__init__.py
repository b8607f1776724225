"""KV events that vLLM and SGLang publish over ZMQ."""
