"""Tests of workers. A package, so that Python takes no folder here (`vllm`) for the library."""
