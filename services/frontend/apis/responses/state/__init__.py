"""Adds state to the Responses API: a layer around the stateless part, which does not depend on it.

Before a turn, `request_reader` completes a request's input (`references`); after the turn,
`accepted_request` makes the record for the store. Responses without an HTTP answer of their own
(`detached`) run in the `background` or on a `socket`.
"""
