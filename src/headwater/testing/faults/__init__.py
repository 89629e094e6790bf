"""What can go wrong with an answer, and when it does."""
