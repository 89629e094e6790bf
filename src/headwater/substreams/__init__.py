"""Substreams: blocks and undo signals over gRPC, packages, and outputs of modules as Arrow."""
