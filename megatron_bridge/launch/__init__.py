"""Starting ranks: here or elsewhere, and never leaving one behind."""
