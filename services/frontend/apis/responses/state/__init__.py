"""The state of the Responses API: a layer around the stateless part, which knows nothing of it.

Before a turn, `expand` makes a request with its whole input; after it, `keep` stores the response.
"""
