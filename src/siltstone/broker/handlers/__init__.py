"""What the broker answers: a module for each group of APIs, a function for each API.

A handler gets the broker, the request and its circumstances (``Call``). It runs in the loop's thread and
returns the answer; one that waits is a coroutine.
"""
