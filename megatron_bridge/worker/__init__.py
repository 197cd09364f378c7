"""What runs on the ranks; the only place that imports megatron.core."""
