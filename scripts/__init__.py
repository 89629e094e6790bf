"""What contributors run: checks of the documents, and the generators of their pages."""
