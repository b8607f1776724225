"""The engine `sglang-server`."""
