"""Conversion between Hugging Face folders and Megatron checkpoints."""
