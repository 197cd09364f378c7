"""Forward passes on the ranks: `torchrun -m megatron_bridge.worker.logits spec.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

from megatron_bridge import checkpoint, families
from megatron_bridge.config import ForwardSpec
from megatron_bridge.worker import checkpoints, model, rank

TOKENS_AT_ONCE = 1024
"""Logits of 1,024 tokens of a vocabulary of 150,000 take 0.6 GB in float32."""


def work(text: str) -> None:
    """Do the job; one rank of the last pipeline stage writes the answer."""
    spec = ForwardSpec.model_validate_json(text)
    rank.join(spec.parallel, spec.dtype)
    info = checkpoint.read_info(spec.checkpoint)
    hf_config = families.read_config(spec.checkpoint / checkpoint.HF_FILES)
    gpt = model.build(
        families.get(info.model_type).megatron_config(hf_config),
        spec.parallel,
        vocab_size=info.vocab_size,
        dtype=spec.dtype,
    )
    checkpoints.load_weights(gpt, spec.checkpoint)
    gpt.eval()
    with torch.no_grad():
        if spec.job == "logits":
            _write_logits(gpt, spec, info.vocab_size)
        elif spec.job == "losses":
            _write_json(spec.out, token_losses(gpt, spec.tokens))
        else:
            _write_json(spec.out, generate(gpt, spec.tokens, spec.max_new_tokens))
    rank.leave()


def forward(
    gpt: GPTModel, tokens: torch.Tensor, labels: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Run one batch through all pipeline stages; a collective call.

    Args:
        gpt: this rank's part of the model.
        tokens: ids, [batch, sequence].
        labels: the ids to predict, [batch, sequence].

    Returns:
        On the last stage the logits, [batch, sequence, padded vocabulary / TP], or with labels
        the losses, [batch, sequence], natural logarithm; None on the others.
    """
    length = tokens.shape[1]
    if gpt.config.sequence_parallel:
        # The sequence is split evenly; what is added on the right is never looked at.
        extra = -length % gpt.config.tensor_model_parallel_size
        tokens = torch.nn.functional.pad(tokens, (0, extra))
        labels = None if labels is None else torch.nn.functional.pad(labels, (0, extra))
    device = torch.cuda.current_device()
    batch = (tokens.to(device), None if labels is None else labels.to(device))
    answers = get_forward_backward_func()(
        forward_step_func=_forward_step,
        data_iterator=iter([batch]),
        model=[gpt],
        num_microbatches=1,
        seq_length=tokens.shape[1],
        micro_batch_size=tokens.shape[0],
        forward_only=True,
        collect_non_loss_data=True,
    )
    return answers[0][:, :length] if answers else None


def token_losses(gpt: GPTModel, sequences: list[list[int]]) -> list[list[float]] | None:
    """Return the loss of each predicted token of each sequence, on the last stage."""
    found: list[list[float]] = []
    longest = max(map(len, sequences), default=1)
    rows = max(1, TOKENS_AT_ONCE // longest)
    for start in range(0, len(sequences), rows):
        part = sequences[start : start + rows]
        tokens = pad([ids[:-1] for ids in part])
        losses = forward(gpt, tokens, pad([ids[1:] for ids in part]))
        if losses is not None:
            cut = zip(losses.float().tolist(), part, strict=True)
            found += [row[: len(ids) - 1] for row, ids in cut]
    return found if parallel_state.is_pipeline_last_stage() else None


def generate(gpt: GPTModel, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return `count` greedy tokens after each prompt; every rank returns the same.

    The whole sequence is computed again for each token: there is no cache.
    """
    sequences = [list(prompt) for prompt in prompts]
    source = parallel_state.get_pipeline_model_parallel_last_rank()
    group = parallel_state.get_pipeline_model_parallel_group()
    for _ in range(count):
        # Padding on the right lies behind every position that is looked at.
        logits = forward(gpt, pad(sequences))
        best = torch.zeros(len(sequences), dtype=torch.long, device=torch.cuda.current_device())
        if logits is not None:
            last = torch.tensor([len(ids) - 1 for ids in sequences], device=logits.device)
            rows = torch.arange(len(sequences), device=logits.device)
            ends = gather_from_tensor_model_parallel_region(logits[rows, last])
            best = ends.argmax(-1)
        torch.distributed.broadcast(best, src=source, group=group)
        for ids, token in zip(sequences, best.tolist(), strict=True):
            ids.append(token)
    return [ids[len(prompt) :] for ids, prompt in zip(sequences, prompts, strict=True)]


def pad(sequences: list[list[int]]) -> torch.Tensor:
    """Return sequences as one tensor, filled up with zeros on the right."""
    longest = max(map(len, sequences))
    return torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences])


def _forward_step(batches: Iterator[Any], gpt: GPTModel) -> tuple[torch.Tensor, Any]:
    tokens, labels = next(batches)
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    output = gpt(tokens, positions, None, labels=labels)
    return output, lambda answer, non_loss_data: answer


def _write_logits(gpt: GPTModel, spec: ForwardSpec, vocab_size: int) -> None:
    from safetensors.torch import save_file

    rows = max(1, TOKENS_AT_ONCE // max(map(len, spec.tokens)))
    parts = []
    for start in range(0, len(spec.tokens), rows):
        logits = forward(gpt, torch.tensor(spec.tokens[start : start + rows]))
        if logits is not None:
            whole = gather_from_tensor_model_parallel_region(logits)
            parts.append(whole[..., :vocab_size].cpu())
    if is_writer():
        save_file({"logits": torch.cat(parts).contiguous()}, spec.out)


def _write_json(path: Path, answer: Any) -> None:
    if is_writer():
        path.write_text(json.dumps(answer), encoding="utf-8")


def is_writer() -> bool:
    """True on the one rank that writes answers: of the last stage, the first of its groups."""
    return bool(
        parallel_state.is_pipeline_last_stage()
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_data_parallel_rank() == 0
    )


if __name__ == "__main__":
    rank.run(work)
