"""Continued pretraining on the ranks: `torchrun -m megatron_bridge.worker.train spec.json`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func

from megatron_bridge import certificate, checkpoint, families, resume
from megatron_bridge.config import TrainConfig, TrainSpec
from megatron_bridge.errors import ProofError
from megatron_bridge.mapping import VOCAB_DIVISOR
from megatron_bridge.worker import checkpoints, data, model, rank


def work(text: str) -> None:
    """Train from the newest resume point, or from the start, to the last step."""
    spec = TrainSpec.model_validate_json(text)
    rank.join(spec.config, spec.config.dtype, spec.config.seed)
    Run(spec).train()
    rank.leave()


class Run:
    """One training run: the model, the optimizer, the samples and the folder they are kept in."""

    def __init__(self, spec: TrainSpec) -> None:
        self.spec, self.config = spec, spec.config
        self.info = checkpoint.read_info(spec.checkpoint)
        self.proven = certificate.doubt_of_checkpoint(spec.checkpoint) is None
        hf_config = families.read_config(spec.checkpoint / checkpoint.HF_FILES)
        family = families.get(self.info.model_type)
        self.step, point = self._resume_point()
        self.model = model.build(
            family.megatron_config(hf_config),
            self.config,
            vocab_size=self.info.vocab_size,
            dtype=self.config.dtype,
            extras=self.config.megatron,
        )
        # Before the optimizer is built: it copies the weights into its own.
        checkpoints.load_weights(self.model, point or spec.checkpoint)
        self.ddp, self.optimizer, self.scheduler = _optimizer(self.model, self.config)
        if point is not None:
            self.ddp.zero_grad_buffer()
            checkpoints.load(point, self.model, self.optimizer, self.scheduler)
        self.dataset = data.build(spec, self.info.vocab_size)
        self.batches = data.Batches(
            self.dataset,
            self.config,
            self.step * self.config.global_batch_size,
            self.info.vocab_size,
        )

    def train(self) -> None:
        """Run the remaining steps; rank 0 writes the log and the ledger."""
        if self.step == self.config.steps:
            return
        with self._open(resume.LOG) as log, self._open(resume.LEDGER) as ledger:
            while self.step < self.config.steps:
                started = time.perf_counter()
                line = self._one_step()
                seconds = time.perf_counter() - started
                line |= {
                    "seconds": round(seconds, 4),
                    "tokens_per_second": round(line["tokens"] / seconds, 2),
                    "consumed_samples": self.batches.consumed,
                    "epochs": self.batches.consumed * self.config.sequence_length
                    / self.dataset.tokens,
                }  # fmt: skip
                taken = self.batches.record()
                _write(ledger, {"step": self.step, **taken})
                _write(log, line)
                if self.step % self.config.checkpoint_every == 0 or self.step == self.config.steps:
                    self._save()

    def _one_step(self) -> dict[str, Any]:
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        pieces = get_forward_backward_func()(
            forward_step_func=_forward,
            data_iterator=self.batches,
            model=[self.ddp],
            num_microbatches=self.config.micro_batches,
            seq_length=self.config.sequence_length,
            micro_batch_size=self.config.micro_batch_size,
            forward_only=False,
        )
        loss, tokens = _over_all_ranks(pieces, self.config.tensor_parallel)
        self.step += 1
        if not math.isfinite(loss):
            raise _not_finite("loss", loss, self.step)
        learning_rate = self.optimizer.param_groups[0]["lr"]
        _, grad_norm, _ = self.optimizer.step()
        if not math.isfinite(grad_norm):
            raise _not_finite("gradient norm", float(grad_norm), self.step)
        self.scheduler.step(increment=1)
        return {
            "step": self.step,
            "loss": loss,
            "grad_norm": float(grad_norm),
            "learning_rate": learning_rate,
            "tokens": tokens,
        }

    def _resume_point(self) -> tuple[int, Path | None]:
        """Let rank 0 choose and tidy up, and tell the others."""
        chosen: list[Any] = [None]
        if torch.distributed.get_rank() == 0:
            chosen = [resume.newest(self.spec.run_dir)]
            resume.cut(self.spec.run_dir, chosen[0][0])
        torch.distributed.broadcast_object_list(chosen, src=0)
        step, point = chosen[0]
        return step, point

    def _open(self, name: str) -> IO[str]:
        path = self.spec.run_dir / name if torch.distributed.get_rank() == 0 else Path("/dev/null")
        return path.open("a", encoding="utf-8")

    def _save(self) -> None:
        final = resume.folder(self.spec.run_dir, self.step)
        partial_folder = final.with_name(f".{final.name}.partial")
        checkpoints.save(partial_folder, self.model, self.optimizer, self.scheduler)
        if torch.distributed.get_rank() == 0:
            checkpoints.link_side_files(self.spec.checkpoint, partial_folder)
            checkpoint.commit(
                partial_folder,
                iteration=self.step,
                consumed_samples=self.batches.consumed,
                model_type=self.info.model_type,
                dtype=self.config.dtype,
                vocab_size=self.info.vocab_size,
                padded_vocab_size=self.model.vocab_size,
                vocab_divisor=VOCAB_DIVISOR * self.config.tensor_parallel,
                optimizer=True,
                hf_prefix=self.info.hf_prefix,
                proven=self.proven,
                dequantised=self.info.dequantised,
            )
            partial_folder.rename(final)
            checkpoint.sync_folder(final.parent)
            resume.prune(self.spec.run_dir, self.config.checkpoints_kept)
        torch.distributed.barrier()


def _optimizer(gpt: Any, config: TrainConfig) -> tuple[Any, Any, OptimizerParamScheduler]:
    """Wrap the model for data parallelism; build AdamW and its schedule, in steps."""
    ddp = DistributedDataParallel(
        gpt.config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=config.distributed_optimizer
        ),
        gpt,
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=config.learning_rate,
            min_lr=config.min_learning_rate,
            weight_decay=config.weight_decay,
            adam_beta1=config.adam_beta1,
            adam_beta2=config.adam_beta2,
            adam_eps=config.adam_eps,
            # With 0 Megatron would not compute the norm at all, and the log would lack it.
            clip_grad=config.clip_grad or math.inf,
            bf16=config.dtype == "bfloat16",
            params_dtype=model.DTYPES[config.dtype],
            use_distributed_optimizer=config.distributed_optimizer,
        ),
        [ddp],
    )
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.learning_rate,
        min_lr=config.min_learning_rate,
        lr_warmup_steps=config.warmup_steps,
        # It insists on a decay of at least one step after the warm-up.
        lr_decay_steps=max(config.steps, config.warmup_steps + 1),
        lr_decay_style=config.decay,
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=config.steps,
        wd_incr_style="constant",
    )
    gpt.config.grad_scale_func = optimizer.scale_loss
    gpt.config.finalize_model_grads_func = finalize_model_grads
    ddp.train()
    return ddp, optimizer, scheduler


def _forward(batches: Iterator[dict[str, torch.Tensor]], gpt: Any) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    losses = gpt(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return losses, partial(_loss, batch["loss_mask"])


def _loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, Any, Any]:
    total, count = (losses.float() * mask).sum(), mask.sum().int()
    return total, count, torch.stack([total.detach().double(), count.double()])


def _over_all_ranks(pieces: list[torch.Tensor], tensor_parallel: int) -> tuple[float, int]:
    """Return the mean loss and the number of tokens of a global batch.

    Every tensor-parallel rank of the last stage has the same sum, the other stages have none.
    """
    device = torch.cuda.current_device()
    both = torch.zeros(2, dtype=torch.float64, device=device)
    for piece in pieces:
        both += piece
    torch.distributed.all_reduce(both)
    total, count = both.tolist()
    return total / count, round(count / tensor_parallel)


def _write(file: IO[str], line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _not_finite(name: str, value: float, step: int) -> ProofError:
    return ProofError(
        f"The {name} is not finite",
        where=f"training, step {step}",
        expected="a number",
        got=value,
        fix="lower learning_rate, raise warmup_steps, or train in float32",
    )


if __name__ == "__main__":
    rank.run(work)
