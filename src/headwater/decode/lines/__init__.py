"""Reads block lines into one Arrow table per entity, in the wire's forms."""
