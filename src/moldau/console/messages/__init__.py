"""Records for people: reading within budgets, decoding, masking, filtering."""
