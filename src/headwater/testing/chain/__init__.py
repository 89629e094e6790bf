"""A simulated chain: its tree of blocks, their contents, its accounts and contracts."""
