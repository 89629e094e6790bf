"""A simulated Substreams endpoint, and modules and packages for it."""
