"""Continued pretraining on Megatron-Core."""
