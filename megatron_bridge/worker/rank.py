"""What every rank does first and last: tie its life to the launcher, join the others, report."""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from megatron_bridge.config import ParallelConfig
from megatron_bridge.errors import PipelineError
from megatron_bridge.launch.base import failure_file
from megatron_bridge.launch.process import die_with_parent


def run(work: Callable[[str], None]) -> None:
    """Run `work` on the text of the file named on the command line.

    torchrun starts ranks in sessions of their own, so a signal to the caller's process group does
    not reach them: they die with torchrun, and their forked helpers with them. A failure goes into
    a file beside the rank's output, where the launcher looks for it.
    """
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    spec = Path(sys.argv[1])
    try:
        work(spec.read_text(encoding="utf-8"))
    except Exception as error:
        report = {
            "error": type(error).__name__,
            "message": str(error),
            "told": isinstance(error, PipelineError),
            "traceback": traceback.format_exc(),
        }
        path = failure_file(spec, int(os.environ.get("RANK", "0")))
        path.write_text(json.dumps(report), encoding="utf-8")
        if isinstance(error, PipelineError):
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        raise


def join(parallel: ParallelConfig, dtype: str, seed: int = 0) -> None:
    """Join the other ranks, form Megatron's groups and seed the random states."""
    # An Nvidia library reads it when it first starts; fp32 products would run in TF32.
    if dtype == "float32":
        os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    import numpy
    import torch

    from megatron_bridge.worker import cpu, faults

    cpu.install()
    faults.repair()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if gpu else "gloo")
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    form_groups(parallel, seed)


def form_groups(parallel: ParallelConfig, seed: int = 0) -> None:
    """Form Megatron's process groups for a layout, and seed its random states."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor_parallel,
        pipeline_model_parallel_size=parallel.pipeline_parallel,
        context_parallel_size=parallel.context_parallel,
        expert_model_parallel_size=parallel.expert_parallel,
        create_gloo_process_groups=True,
    )
    model_parallel_cuda_manual_seed(seed)


def leave() -> None:
    """Leave the process group, so that no rank waits for one that has gone."""
    import torch

    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
