"""Where outputs lie: one file a storage."""
