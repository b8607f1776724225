"""Completions requests that are refused."""

from tests.frontend.vendor.case import Case, invalid, mistyped, refused, unsupported
from tests.kit.bodies import completions

MIXED = "Invalid 'prompt': token ids and prompts cannot be mixed."
MANY = "Too many choices: 1100 of at most 1024 in one request."

CASES: dict[str, list[Case]] = {
    "": [
        refused("prompt", completions(prompt=[])),
        refused("prompt", completions(prompt=[[]])),
        mistyped("prompt", completions(prompt=[1, "a"]), text=MIXED),
        mistyped("prompt", completions(prompt=[1, [2]]), text=MIXED),
        refused("prompt[0]", completions(prompt=[-1]), "integer_below_min_value"),
        refused("prompt[0]", completions(prompt=[2**32]), "integer_above_max_value"),
        mistyped("prompt[0]", completions(prompt=[1.5])),
        refused("prompt", completions(prompt=["a"] * 100, n=11), text=MANY),
        unsupported("echo", completions(prompt=[1, 2], echo=True)),
        refused("logprobs", completions(echo=True, logprobs=1)),
        refused("logprobs", completions(logprobs=21), "integer_above_max_value"),
        unsupported("best_of", completions(best_of=2)),
        unsupported("best_of", completions(best_of=1, n=2)),
        refused("n", completions(n=0), "integer_below_min_value"),
        invalid("stop", completions(stop="")),
    ],
}
