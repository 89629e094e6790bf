"""Random scenarios of chain, portal and loop, in memory, compared with the oracle: `make sim`."""
