"""Whole systems: streams, real servers, and a network between them that fails."""
