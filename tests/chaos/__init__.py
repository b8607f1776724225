"""Injects faults into real Turnwire processes on a real nats-server, and judges every byte that
clients receive.

`python -m tests.chaos --help`. One trial is a stack under load, a fault, and the judgement of every
stream.
"""
