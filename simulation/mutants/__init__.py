"""Faults planted in copies of the recovery code: the simulation must find them."""
