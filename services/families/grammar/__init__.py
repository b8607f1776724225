"""The parts from which families build their grammars, and the machines that run them."""
