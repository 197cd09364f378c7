"""Every test of the worker runs on one thread."""

from toys import one_thread

__all__ = ["one_thread"]
