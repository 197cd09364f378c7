"""The model to start from."""
