"""model: a Hugging Face folder to start from: copied, read from a GGUF file, or random."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.core import sources
from tasks.core.artifacts import HFModel
from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.core.fingerprint import DigestCache, Runtime
from tasks.core.stage import Context, stage
from tasks.model import folder


class ModelConfig(BaseModel):
    """Which model to start from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Runtime] = Field(
        description="A Hugging Face folder, or a GGUF file: a path, file:///path, or "
        "package://PACKAGE/inner/path"
    )
    seed: int | None = Field(
        None, ge=0, description="Random weights from this seed, for a folder that holds no weights"
    )


def _label(config: ModelConfig, inputs: list[str]) -> str:
    return Path(config.source).name.removesuffix(".gguf")


def _resolve(config: ModelConfig, digests: DigestCache) -> dict[str, Any]:
    path = folder.locate(config.source)
    if path is None:
        return {"source": sources.describe(config.source, digests).identity()}
    files = [
        {"path": file.name, "bytes": file.stat().st_size, "sha256": digests.sha256(file)}
        for file in folder.taken(path)
    ]
    return {"source": {"name": path.name, "files": files}}


def _check(out: Path, metrics: dict[str, Any]) -> None:
    tokenizers = [name for name in folder.TOKENIZERS if (out / name).is_file()]
    if not metrics["parameters"] or not tokenizers:
        raise ProofError(
            "The model folder is not complete", where=out,
            expected=f"weights, and a tokenizer in {' or '.join(folder.TOKENIZERS)}",
            got=f"{metrics['parameters']} parameters, {tokenizers or 'no tokenizer'}",
            fix="add the missing files to the source",
        )  # fmt: skip


@stage("model", version=2, output=HFModel, label=_label, resolve=_resolve, check=_check)
def model(config: ModelConfig, ctx: Context) -> dict[str, Any]:
    """Make the folder that tokens, to_megatron and evaluate start from."""
    path = folder.locate(config.source)
    if path is None:
        from tasks.model import gguf_file

        _no_seed(config, "a GGUF file")
        how = gguf_file.convert(sources.locate(config.source), ctx.out, ctx.progress)
    elif folder.has_weights(path):
        _no_seed(config, "a folder with weights")
        how = folder.copy(path, ctx.out, ctx.progress)
    else:
        how = _random(config, path, ctx)
    return {**folder.measure(ctx.out), **how}


def _random(config: ModelConfig, path: Path, ctx: Context) -> dict[str, Any]:
    if config.seed is None:
        raise InputError(
            "The model folder holds no weights", where=path, expected="*.safetensors",
            got="none", fix="fetch the weights, or set model.seed for random ones",
        )  # fmt: skip
    from tasks.model import random_weights

    return random_weights.make(path, config.seed, ctx.out, ctx.progress)


def _no_seed(config: ModelConfig, source: str) -> None:
    if config.seed is not None:
        raise ConfigError(
            "A seed is for a source without weights", where="model.seed",
            expected=f"none, for the weights come from {source}", got=config.seed,
            fix="leave model.seed out",
        )  # fmt: skip
