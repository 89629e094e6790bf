"""The whole system under simulated weather: streams, real databases, a network that fails, kills.

A world plays one seed: it lets the chain, the network and the processes misbehave, and then
compares every table with the chain. `make soak` plays many.
"""
