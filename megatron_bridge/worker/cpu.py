"""Stand-ins that let Megatron-Core run on a machine without a GPU, over gloo.

Megatron-Core names CUDA streams, events, devices and random states throughout, and none of them
exists here. Everything that reaches into Megatron or into `torch.cuda` for that reason lies in
this file, and nothing of it is installed where a GPU is present.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def install() -> None:
    """Install the stand-ins; does nothing where a GPU is present. Call before Megatron's parts."""
    if torch.cuda.is_available():
        return
    cuda: Any = torch.cuda
    # Megatron allocates on `torch.cuda.current_device()`.
    cuda.current_device = lambda: CPU
    cuda.synchronize = lambda *args, **kwargs: None
    cuda.empty_cache = lambda: None
    cuda.is_current_stream_capturing = lambda: False
    # Gradient reduction and pipeline schedules order work on streams; a CPU has one order only.
    cuda.Stream = _Stream
    cuda.Event = _Event
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: _Stream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    # `model_parallel_cuda_manual_seed` and activation recomputation keep CUDA's random state.
    cuda.get_rng_state = lambda *args, **kwargs: torch.random.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.random.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *args, **kwargs: self
    _patch_megatron()
    mode: Any = _CudaMeansCpu()
    mode.__enter__()


def _patch_megatron() -> None:
    import megatron.core.tensor_parallel.random as megatron_random
    import megatron.core.transformer.moe.moe_utils as moe_utils

    internals: Any = megatron_random
    internals._get_cuda_rng_state = lambda *args, **kwargs: torch.random.get_rng_state()
    internals._set_cuda_rng_state = lambda state, *args, **kwargs: torch.random.set_rng_state(state)
    # 0.16.1 names it without importing it where Transformer Engine is missing.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


class _CudaMeansCpu(TorchFunctionMode):
    """Sends `device="cuda"` to the CPU and lets CPU tensors pass `type() == "torch.cuda.…"`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _cpu_for_cuda(kwargs["device"])}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(
                _cpu_for_cuda(a) if isinstance(a, (str, torch.device)) else a for a in args
            )
        result = func(*args, **kwargs)
        # The optimizers sort parameters by this name and refuse what is not on a GPU.
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def _cpu_for_cuda(device: Any) -> Any:
    if isinstance(device, int) and not isinstance(device, bool):
        return CPU
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda":
        return CPU
    return device


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    def wait(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, *args: Any) -> None:
        pass

    def wait_event(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, *args: Any) -> _Event:
        return _Event()
