"""Folded changes into SQL: staged as wide frames, merged into tables a set at a time."""
