"""Weight files of every kind, read by byte ranges: no map, no whole file in memory."""
