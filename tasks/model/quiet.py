"""transformers without its own progress bars: the stage shows its progress itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import modeling_gguf_pytorch_utils as gguf_loader
from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars inside; as before outside."""
    shown, bar = logging.is_progress_bar_enabled(), gguf_loader.tqdm
    logging.disable_progress_bar()
    # This one loader does not ask whether bars are wanted.
    gguf_loader.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        gguf_loader.tqdm = bar
        if shown:
            logging.enable_progress_bar()
