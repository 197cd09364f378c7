"""Held-out perplexity and zero-shot losses."""
