"""Hugging Face's own answers, to compare with: `python -m megatron_bridge.reference spec.json`.

`ask` starts it as a process of its own, so that its memory is free again before Megatron's ranks
start, and that nothing of it is loaded where it is not asked. Code that comes with a model is never
run: a model that only such code defines has no reference here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatron_bridge.config import DType
from megatron_bridge.errors import InputError, PipelineError
from megatron_bridge.launch import process

Answer = dict[str, Any]
"""`reason` where there is no reference; else what the job gives."""

TEXT_TOKENS, WINDOW = 8192, 512
"""Of a text, so many tokens at most are predicted, in windows of this length."""


def ask(job: str, folder: Path, out: Path, **more: Any) -> Answer:
    """Run a job on Hugging Face's model in a process of its own.

    Args:
        job: "logits" (of `tokens`, in each of `dtypes`, one tensor each in the safetensors file
            `out`) or "losses" (of the text in file `text`: windows, losses).
        folder: the Hugging Face folder.
        out: where logits go.
        more: the job's own arguments, and `rounded`: a number format that weights are rounded to
            before they are computed with.
    """
    with tempfile.TemporaryDirectory(prefix="megaline-") as scratch:
        spec, answer = Path(scratch) / "spec.json", Path(scratch) / "answer.json"
        told = {"job": job, "folder": folder, "out": out, "answer": answer, **more}
        spec.write_text(json.dumps(told, default=str), encoding="utf-8")
        child = process.tied(
            [sys.executable, "-m", "megatron_bridge.reference", str(spec)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said, _ = child.communicate()
        if child.returncode:
            raise PipelineError(
                "Hugging Face's model cannot be run",
                where=folder,
                expected="a model that transformers loads",
                got="\n".join(said.splitlines()[-6:]) or f"exit status {child.returncode}",
                fix="try the folder with transformers alone",
            )
        given: Answer = json.loads(answer.read_text(encoding="utf-8"))
        return given


def token_losses(
    folder: Path,
    windows: Sequence[Sequence[int]],
    progress: Callable[[int], None] = lambda done: None,
    rounded: DType | None = None,
) -> list[list[float]]:
    """The loss of every id of every window but its first, in float32, in this process.

    Args:
        folder: a Hugging Face folder, loaded by transformers and nothing of ours.
        windows: ids.
        progress: called with the number of ids predicted so far.
        rounded: round the weights to this number format first.

    Returns:
        Natural logarithms, [windows][ids - 1].
    """
    import torch

    model = load(folder, "float32", rounded)
    losses: list[list[float]] = []
    done = 0
    with torch.inference_mode():
        for window in windows:
            ids = torch.tensor([list(window)])
            logits = model(ids, use_cache=False).logits[0, :-1]
            # Not cross_entropy: on a CPU in float32 it sums large vocabularies term after term, and
            # its mean over 8,000 ids of a vocabulary of 49,152 is 8e-6 off (measured).
            predicted = logits.gather(-1, ids[0, 1:, None]).squeeze(-1)
            losses.append((logits.logsumexp(-1) - predicted).tolist())
            done += len(window) - 1
            progress(done)
    return losses


def load(folder: Path, dtype: DType, rounded: DType | None = None) -> Any:
    """Return transformers' model, ready to answer."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    # Only the eager path has soft caps; Falcon's adds ALiBi twice (transformers 5.24).
    attention = {"attn_implementation": "eager"} if config.get("attn_logit_softcapping") else {}
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, rounded or dtype), trust_remote_code=False, **attention
    )
    return model.to(getattr(torch, dtype)).eval()


def why_none(folder: Path) -> str | None:
    """Say why transformers has no model of this type without running its code, or None."""
    from transformers.models.auto import modeling_auto

    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return None
    return f"transformers has no class of its own for {kind!r}, and code of a model is not run"


def _work(spec: dict[str, Any]) -> Answer:
    folder = Path(spec["folder"])
    if reason := why_none(folder):
        return {"reason": reason}
    if spec["job"] == "logits":
        return _logits(folder, spec)
    windows = _windows(folder, Path(spec["text"]), spec["longest"])
    return {"windows": windows, "losses": token_losses(folder, windows, rounded=spec["rounded"])}


def _logits(folder: Path, spec: dict[str, Any]) -> Answer:
    import torch
    from safetensors.torch import save_file

    tokens, found = torch.tensor(spec["tokens"]), {}
    for dtype in spec["dtypes"]:
        model = load(folder, dtype, spec["rounded"])
        with torch.inference_mode():
            found[dtype] = model(tokens, use_cache=False).logits.float().contiguous()
    save_file(found, spec["out"])
    return {}


def _windows(folder: Path, path: Path, longest: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            "The text cannot be made into tokens",
            where=f"{path}, {folder}",
            expected="a file in UTF-8, and a tokenizer that transformers knows",
            got=error,
            fix="name another file, or give the folder its tokenizer.json",
        ) from error
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: TEXT_TOKENS + 1]
    size = min(WINDOW, longest)
    # Neighbours share one token, so that each token but the first is predicted once.
    windows = [ids[start : start + size] for start in range(0, max(len(ids) - 1, 0), size - 1)]
    if not windows:
        raise InputError(
            "The text is too short", where=path, expected="two tokens or more", got=len(ids),
            fix="give a page of text",
        )  # fmt: skip
    return windows


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answered = _work(given)
    except InputError as error:
        answered = {"error": str(error)}
    Path(given["answer"]).write_text(json.dumps(answered), encoding="utf-8")
