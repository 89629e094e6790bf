"""Random scenarios of chain, portal and pipeline, and the oracle that they are compared with."""
