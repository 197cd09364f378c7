"""From chat messages to packed token ids with a loss mask (supervised fine-tuning)."""
