"""Makes a model with random weights write what its prompt asks for, in vLLM."""
