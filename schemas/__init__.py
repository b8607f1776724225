"""The messages between processes, as msgspec Structs. No IO, no clock, no logging.

`conversation` has a client's request, in one form for all three APIs; `events` has the output of a
turn, as one ordered stream; `requests`, `frames` and `control` have the messages between the four
services, `notices` those among frontends; `subjects` builds the names on the bus; `errors` has the
errors that end a request.
"""
