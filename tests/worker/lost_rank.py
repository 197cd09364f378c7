"""Runs under torchrun: one rank dies without a word, the other waits for it."""

import os
import signal
import time

from megatron_bridge.worker import rank


def work(text: str) -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


if __name__ == "__main__":
    rank.run(work)
