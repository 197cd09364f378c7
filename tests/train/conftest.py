"""The toys of the worker's tests serve here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from toys import one_thread

__all__ = ["one_thread"]
