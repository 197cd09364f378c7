"""Wikipedia dumps to readable text."""
