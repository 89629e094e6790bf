"""A simulated chain: its tree of blocks, their names, and who takes part in it."""
