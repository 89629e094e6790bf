"""Raw tables of every network: the items of one entity as the chain has them."""
