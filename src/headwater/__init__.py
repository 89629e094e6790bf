"""Blockchain data in Apache Spark that stays correct when the chain reorganizes."""
