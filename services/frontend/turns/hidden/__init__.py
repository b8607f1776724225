"""Calls of tools that a client does not see, such as the search of tools that it did not defer.

The client gets one answer without them (`deferred_tools.py` adds the search, `HostedAnswer` runs
it). Its next request lacks these calls, so what was hidden of each answer is collected
(`builder.py`), remembered (`memory.py`), and put back into the history (`history.py`): the prompt
then begins with all tokens of the turn before.
"""
