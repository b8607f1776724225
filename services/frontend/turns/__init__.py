"""Answers: a request is admitted, its turns are opened, and their events go to a sink."""
