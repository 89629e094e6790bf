"""Nodes as sources: a real one, and a simulated one with the quirks of providers."""
