"""Jobs that start ranks: train, logits, token losses, generate. Paths in, paths out.

Each writes one JSON file and starts `megatron_bridge.worker` on it under a launcher, so a failed
job can be repeated by hand. The caller's own process loads neither torch.distributed nor Megatron.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatron_bridge import certificate, checkpoint, families, resume
from megatron_bridge.config import DType, ForwardSpec, ParallelConfig, TrainSpec, validate_layout
from megatron_bridge.data import indices
from megatron_bridge.data.blend import Row
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.launch.base import Launcher
from megatron_bridge.launch.local import LocalLauncher

OnStep = Callable[[dict[str, Any]], None]
OnTable = Callable[[list[Row]], None]


def train(
    spec: TrainSpec,
    launcher: Launcher | None = None,
    on_step: OnStep | None = None,
    on_table: OnTable | None = None,
) -> dict[str, Any]:
    """Train to the last step, from the newest resume point in `spec.run_dir` if there is one.

    Args:
        spec: the job.
        launcher: starts the ranks; this machine's torchrun when None.
        on_step: called with each new line of `log.jsonl`.
        on_table: called before any rank starts with what is taken of each source
            (`data.blend.table`).

    Returns:
        checkpoint (the last one's folder), steps, loss_first, loss_last, tokens (in all),
        tokens_per_second, epochs, resumed_from (a step; 0 for a fresh start), proven, blend (the
        table).

    Raises:
        ConfigError: the layout does not fit the model, a weight asks for more of a source than is
            there, or the run was begun with other samples; before any rank starts.
        InputError: the checkpoint is not whole, or the training split holds no token.
        ProofError: the start is not proven and `spec.unproven` is not set, or the loss is no
            longer finite.
        RetryableError: a rank was lost; call again to go on.
    """
    _check(spec.checkpoint, spec.config, spec.config.sequence_length)
    reason = certificate.doubt_of_checkpoint(spec.checkpoint)
    certificate.require(
        reason, "The checkpoint", spec.checkpoint, spec.unproven, "--unproven, or train.unproven"
    )
    run_dir = spec.run_dir
    samples = indices.build(spec.sources, spec.config, spec.index_dir or run_dir / "index")
    if on_table is not None:
        on_table(samples.rows)
    run_dir.mkdir(parents=True, exist_ok=True)
    start, _ = resume.newest(run_dir)
    if start:
        _require_same(samples, run_dir / resume.SAMPLES, start)
    if start < spec.config.steps:
        # The ranks would do the same; done here, everything beyond is a new line.
        resume.cut(run_dir, start)
        file = run_dir / resume.SPEC
        file.write_text(spec.model_dump_json(indent=1), encoding="utf-8")
        (run_dir / resume.SAMPLES).write_text(samples.model_dump_json(indent=1), encoding="utf-8")
        follow = _Follower(run_dir / resume.LOG, on_step) if on_step else None
        (launcher or LocalLauncher()).run(
            "megatron_bridge.worker.train", file, spec.config.world_size, follow
        )
    log = resume.read_lines(run_dir / resume.LOG)
    tokens = sum(line["tokens"] for line in log)
    return {
        "checkpoint": str(resume.folder(run_dir, spec.config.steps)),
        "steps": len(log),
        "loss_first": log[0]["loss"],
        "loss_last": log[-1]["loss"],
        "tokens": tokens,
        "tokens_per_second": round(tokens / sum(line["seconds"] for line in log), 2),
        "epochs": round(log[-1]["epochs"], 4),
        "resumed_from": start,
        "proven": reason is None,
        "blend": samples.rows,
    }


def logits(
    checkpoint_dir: Path,
    tokens: Sequence[Sequence[int]],
    out: Path,
    parallel: ParallelConfig | None = None,
    dtype: DType = "float32",
) -> None:
    """Write the logits of equal-length sequences to a safetensors file.

    The tensor `logits` is [batch, sequence, vocabulary], without padding.

    Raises:
        ConfigError: the layout does not fit the model.
        InputError: the checkpoint is not whole, or the tokens do not fit it.
    """
    if len({len(ids) for ids in tokens}) != 1:
        raise InputError(
            "The sequences differ in length",
            where="tokens",
            expected="a list of lists of ids, all of one length",
            got=f"lengths {sorted({len(ids) for ids in tokens})}",
            fix="cut them to one length, or ask for them one by one",
        )
    _forward("logits", checkpoint_dir, tokens, out, parallel, dtype)


def token_losses(
    checkpoint_dir: Path,
    tokens: Sequence[Sequence[int]],
    parallel: ParallelConfig | None = None,
    dtype: DType = "float32",
) -> list[list[float]]:
    """Return the loss (natural logarithm) of every token of every sequence but its first.

    Memory for logits is bounded whatever the number of tokens. Raises as `logits` does.
    """
    answer: list[list[float]] = _answer("losses", checkpoint_dir, tokens, parallel, dtype)
    return answer


def generate(
    checkpoint_dir: Path,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    parallel: ParallelConfig | None = None,
    dtype: DType = "float32",
) -> list[list[int]]:
    """Return `max_new_tokens` greedy tokens after each prompt, without the prompt.

    Nothing stops early, also not an end-of-document token. Raises as `logits` does.
    """
    answer: list[list[int]] = _answer(
        "generate", checkpoint_dir, prompts, parallel, dtype, max_new_tokens
    )
    return answer


def _require_same(samples: indices.Samples, file: Path, start: int) -> None:
    """Refuse to go on with samples in another order than those taken so far."""
    begun = indices.Samples.model_validate_json(file.read_text(encoding="utf-8"))
    if samples.key != begun.key:
        raise ConfigError(
            "This run was begun with other samples",
            where=f"{file.parent}, step {start}",
            expected="the datasets, weights, sequence length, seed and number of samples it had",
            got=f"indices {samples.key} in place of {begun.key}",
            fix="start a run in another folder",
        )


class _Follower:
    """Hands on the lines that are added to a file from now on."""

    def __init__(self, path: Path, on_line: OnStep) -> None:
        self._path, self._on_line = path, on_line
        self._offset = path.stat().st_size

    def __call__(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._on_line(json.loads(line))


def _answer(
    job: str,
    checkpoint_dir: Path,
    tokens: Sequence[Sequence[int]],
    parallel: ParallelConfig | None,
    dtype: DType,
    max_new_tokens: int = 0,
) -> Any:
    with tempfile.TemporaryDirectory(prefix="megaline-") as folder:
        out = Path(folder) / "answer.json"
        _forward(job, checkpoint_dir, tokens, out, parallel, dtype, max_new_tokens)
        return json.loads(out.read_text(encoding="utf-8"))


def _forward(
    job: Any,
    checkpoint_dir: Path,
    tokens: Sequence[Sequence[int]],
    out: Path,
    parallel: ParallelConfig | None,
    dtype: DType,
    max_new_tokens: int = 0,
) -> None:
    parallel = parallel or ParallelConfig()
    longest = max(map(len, tokens), default=0) + max_new_tokens
    if parallel.sequence_parallel:
        # The ranks fill sequences up to a length that can be split.
        longest += -longest % parallel.tensor_parallel
    info = _check(checkpoint_dir, parallel, longest)
    for row, ids in enumerate(tokens):
        if not ids or not all(0 <= token < info.vocab_size for token in ids):
            raise InputError(
                "A sequence is empty or has an id outside the vocabulary",
                where=f"tokens[{row}]",
                expected=f"ids from 0 to {info.vocab_size - 1}",
                got=f"{len(ids)} ids, {min(ids, default=None)} to {max(ids, default=None)}",
                fix="tokenize with the tokenizer of this model",
            )
    with tempfile.TemporaryDirectory(prefix="megaline-") as folder:
        spec = ForwardSpec(
            job=job,
            checkpoint=Path(checkpoint_dir).resolve(),
            tokens=[list(ids) for ids in tokens],
            out=Path(out).resolve(),
            parallel=parallel,
            dtype=dtype,
            max_new_tokens=max_new_tokens,
        )
        file = Path(folder) / "spec.json"
        file.write_text(spec.model_dump_json(), encoding="utf-8")
        world_size = parallel.model_parallel * parallel.expert_parallel
        LocalLauncher(alone=world_size == 1).run("megatron_bridge.worker.logits", file, world_size)


def _check(
    folder: Path, parallel: ParallelConfig, sequence_length: int
) -> checkpoint.CheckpointInfo:
    info = checkpoint.read_info(Path(folder))
    hf_config = families.read_config(Path(folder) / checkpoint.HF_FILES)
    fields = families.get(info.model_type).megatron_config(hf_config)
    validate_layout(fields, parallel, sequence_length)
    return info
