"""Text to Megatron indexed datasets."""
