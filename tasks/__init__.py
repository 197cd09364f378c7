"""The stages of the line, one folder each."""
