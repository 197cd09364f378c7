"""The trained model against the one it started from."""
