"""Folded changes into tables: split into rounds of wide frames, merged a set at a time."""
