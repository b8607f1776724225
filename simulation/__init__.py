"""Deterministic simulation: all services in one interpreter, in virtual time, with faults drawn
from a seed."""
