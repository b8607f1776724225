"""The engine `vllm-server`."""
