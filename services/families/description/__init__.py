"""The parts of a `response_template`, a model's own description of its output."""
