"""A caller of `runs.train` as a program of its own, to be killed: `python run_train.py SPEC`."""

import sys
from pathlib import Path

from megatron_bridge import runs
from megatron_bridge.config import TrainSpec

if __name__ == "__main__":
    runs.train(TrainSpec.model_validate_json(Path(sys.argv[1]).read_text()))
