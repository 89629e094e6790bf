"""All networks that a portal serves and Headwater knows: one module each.

A network is a catalogue, and a builder with a method per family; Bitcoin's is a short one to begin
from. It enters `QUERIES` of `headwater.query`, and its raw tables `decode/tables`. The keys of
filters are typed dictionaries, which type checkers and editors read; their annotations are the
catalogue.
"""
