"""Source files into the store."""
