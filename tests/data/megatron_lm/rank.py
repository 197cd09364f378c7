"""One rank of a Megatron-LM run on a CPU: Megatron-LM's arguments in, its own checkpoint out.

Started by torchrun with Megatron-LM's command line. The model, the optimizer, the training step,
loading and saving are `megatron.training`'s; what is added is the CPU's stand-ins, a data set made
from sample numbers (so that it does not depend on the layout), and the logits of fixed tokens.
Environment: STEPS, how many to train; LOGITS, a file for the logits; REPORT, a file for losses and
gradient norms; ZERO_MOMENTS, forget the optimizer's moments after loading (a control).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from megatron_bridge.worker import cpu, faults

cpu.install()
faults.repair()
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda device: None
torch.cuda.get_device_properties = lambda device: SimpleNamespace(major=9, minor=0)

from megatron.core import mpu, tensor_parallel  # noqa: E402
from megatron.core.distributed import finalize_model_grads  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.optimizer import get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.utils import get_model_config  # noqa: E402
from megatron.training import arguments, checkpointing, get_args, initialize, training  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402

PROMPT = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [97, 93, 23, 84, 62, 64, 33, 83, 27, 95, 0, 100]]


def main() -> None:
    """Train, save, and answer the prompt, as the command line and the environment say."""
    # The data sets' C++ is not used here, and there may be no compiler.
    initialize._compile_dependencies = lambda: None
    args = arguments.parse_and_validate_args()
    # It writes into weights, which a leaf of the graph allows only so.
    training.load_checkpoint = torch.no_grad()(checkpointing.load_checkpoint)
    if args.load and args.use_distributed_optimizer:
        training.get_megatron_optimizer = stepped
    initialize.initialize_megatron(allow_no_cuda=True)
    model, optimizer, scheduler = training.setup_model_and_optimizer(
        ModelType.encoder_or_decoder, provide
    )
    if os.environ.get("ZERO_MOMENTS"):
        forget_moments(optimizer)
    config = get_model_config(model[0])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    first, report = args.iteration, []
    for iteration in range(first, first + int(os.environ.get("STEPS", "0"))):
        data: Any = [RerunDataIterator(samples(iteration)) for _ in model]
        loss, *_, norm, _, _ = training.train_step(
            forward,
            data if len(model) > 1 else data[0],
            model,
            optimizer,
            scheduler,
            config,
            get_forward_backward_func(),
            iteration=iteration,
        )
        args.iteration, args.consumed_train_samples = iteration + 1, 2 * (iteration + 1)
        report.append({"loss": float(loss["lm loss"]) if loss else None, "grad_norm": float(norm)})
    if args.save:
        checkpointing.save_checkpoint(args.iteration, model, optimizer, scheduler, 0)
    if mpu.is_pipeline_last_stage() and mpu.get_tensor_model_parallel_rank() == 0:
        if (path := os.environ.get("REPORT")) and mpu.get_data_parallel_rank() == 0:
            Path(path).write_text(json.dumps(report))
    if path := os.environ.get("LOGITS"):
        answer(model, Path(path))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def provide(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> GPTModel:
    """Return one chunk of the model, as Megatron-LM's `gpt_builders.py` builds it."""
    args = get_args()
    config = config or core_transformer_config_from_args(args)
    if args.num_experts:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(
            config, False, normalization=args.normalization, vp_stage=vp_stage
        )
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            args.num_experts,
            args.moe_grouped_gemm,
            args.qk_layernorm,
            args.multi_latent_attention,
            normalization=args.normalization,
        )
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
        vp_stage=vp_stage,
        pg_collection=pg_collection,
    )


def samples(iteration: int) -> Iterator[torch.Tensor]:
    """Yield this rank's micro-batches of a step, [1, sequence + 1]; two samples make a step."""
    args = get_args()
    ranks = mpu.get_data_parallel_world_size()
    for number in range(mpu.get_data_parallel_rank(), 2, ranks):
        generator = torch.Generator().manual_seed(1000 * iteration + number)
        yield torch.randint(args.vocab_size, (1, args.seq_length + 1), generator=generator)


def forward(data: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """One micro-batch through a chunk of the model, and the loss of what comes out."""
    tokens = next(data)
    places = torch.arange(tokens.shape[1] - 1)[None]
    output = model(tokens[:, :-1], places, None, labels=tokens[:, 1:])
    return output, mean


def mean(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Megatron-LM's form of a loss: the sum, the number of tokens, what to report."""
    total, count = losses.float().sum(), torch.tensor(losses.numel(), dtype=torch.int)
    return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}


def answer(model: list[Any], path: Path) -> None:
    """Write the logits of the prompt, [2, 12, vocabulary], and the prompt itself."""
    from safetensors.torch import save_file

    args = get_args()
    prompt = torch.tensor(PROMPT)

    def whole(data: Any, chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        places = torch.arange(prompt.shape[1])[None]
        return chunk(prompt, places, None), partial(lambda output, **_: output)

    for chunk in model:
        chunk.eval()
    with torch.no_grad():
        out = get_forward_backward_func()(
            forward_step_func=whole,
            data_iterator=[None] * len(model) if len(model) > 1 else None,
            model=model,
            num_microbatches=2,
            seq_length=prompt.shape[1],
            micro_batch_size=prompt.shape[0],
            forward_only=True,
            collect_non_loss_data=True,
        )
    if mpu.is_pipeline_last_stage():
        logits = tensor_parallel.gather_from_tensor_model_parallel_region(out[0])
        logits = logits[..., : args.vocab_size].float().contiguous()
        if mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_data_parallel_rank() == 0:
            save_file({"logits": logits, "tokens": prompt}, path)


def stepped(*given: Any, **named: Any) -> Any:
    """Build a distributed optimizer that can load its state.

    Without Transformer Engine and Apex it must have stepped once; one without a learning rate
    changes nothing.
    """
    optimizer = get_megatron_optimizer(*given, **named)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    return optimizer


def forget_moments(optimizer: Any) -> None:
    """Set the moments of every parameter to zero."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in one.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].zero_()


if __name__ == "__main__":
    main()
