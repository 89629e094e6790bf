"""The whole system under simulated weather: streams, real databases, replicas, cuts, pauses, kills.

A seed gives a script: a setting, and a list of steps. A `World` plays it, one thread at a time, and
compares every table with the chain. `python -m headwater.testing.system.soak` plays many.
"""
