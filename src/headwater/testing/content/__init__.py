"""What simulated blocks hold, network by network, in the portal's wire form."""
