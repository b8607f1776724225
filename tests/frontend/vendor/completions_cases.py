"""Completions requests that are refused."""

from tests.frontend.vendor.case import Cases, invalid, mistyped, refused, unsupported
from tests.kit.bodies import completions

MIXED = "Invalid 'prompt': token ids and prompts cannot be mixed."
MANY = "Too many choices: 1100 of at most 1024 in one request."

CASES: Cases = {
    "": {
        refused("prompt"): completions(prompt=[]),
        refused("prompt"): completions(prompt=[[]]),
        mistyped("prompt", text=MIXED): completions(prompt=[1, "a"]),
        mistyped("prompt", text=MIXED): completions(prompt=[1, [2]]),
        refused("prompt[0]", "integer_below_min_value"): completions(prompt=[-1]),
        refused("prompt[0]", "integer_above_max_value"): completions(prompt=[2**32]),
        mistyped("prompt[0]"): completions(prompt=[1.5]),
        refused("prompt", text=MANY): completions(prompt=["a"] * 100, n=11),
        unsupported("echo"): completions(prompt=[1, 2], echo=True),
        refused("logprobs"): completions(echo=True, logprobs=1),
        refused("logprobs", "integer_above_max_value"): completions(logprobs=21),
        unsupported("best_of"): completions(best_of=2),
        unsupported("best_of"): completions(best_of=1, n=2),
        refused("n", "integer_below_min_value"): completions(n=0),
        invalid("stop"): completions(stop=""),
    }
}
