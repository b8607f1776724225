"""Every message that crosses a process border, as msgspec Structs. No IO, no clock, no logging.

`conversation` is what a client asked for, in one form for all three APIs; `events` is what a turn says, in one ordered
stream; `frames` and `control` are what travels between the four services; `subjects` names the places on the bus;
`errors` is the one tree of everything that can go wrong with a turn.
"""
