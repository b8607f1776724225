"""Injects faults into real processes under load, and judges every byte that clients receive: one
trial is a stack, a fault, and the judgement of every stream. `python -m tests.chaos --help`."""
