"""Runs NVIDIA Dynamo beside Turnwire: from PyPI in an environment of its own, on this machine's
loopback without etcd, with a worker that plays `bench/scripts`. Only its public command line and
Python bindings are used."""

VERSION = "1.6.1"
MODEL = "bench/scripted"
"""The name under which the worker registers the model directory."""
