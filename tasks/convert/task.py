"""to_megatron and to_hf: a model folder as a checkpoint, and a trained checkpoint as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from megatron_bridge.config import DType
from tasks.core.artifacts import HFModel, MegatronCheckpoint
from tasks.core.stage import Context, stage


class ToMegatronConfig(BaseModel):
    """How the start model becomes a Megatron checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: DType | None = Field(None, description="Cast weights; empty: as they are, bit for bit")


class ToHFConfig(BaseModel):
    """How the trained checkpoint becomes a Hugging Face folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: DType | None = Field(None, description="Cast weights; empty: as they were trained")


@stage("to_megatron", version=2, output=MegatronCheckpoint, label=lambda config, inputs: inputs[0])
def to_megatron(config: ToMegatronConfig, ctx: Context, model: HFModel) -> dict[str, Any]:
    """Convert the start model; its `certificate.json` lies in the checkpoint."""
    from megatron_bridge.convert import import_hf

    out = ctx.out / "checkpoint"
    found = import_hf(model.folder, out, config.dtype, ctx.progress, scratch=ctx.scratch)
    return _metrics(found, out)


@stage("to_hf", version=2, output=HFModel, label=lambda config, inputs: inputs[0])
def to_hf(config: ToHFConfig, ctx: Context, trained: MegatronCheckpoint) -> dict[str, Any]:
    """Convert the trained checkpoint; its `certificate.json` lies in the folder."""
    from megatron_bridge.convert import export_hf

    found = export_hf(
        trained.checkpoint,
        ctx.out,
        dtype=config.dtype,
        progress=ctx.progress,
        scratch=ctx.scratch,
    )
    return _metrics(found, ctx.out)


def _metrics(certificate: dict[str, Any], out: Path) -> dict[str, Any]:
    files = (path for path in out.rglob("*") if path.is_file())
    return {
        "model_type": certificate["model_type"],
        "parameters": certificate["parameters"],
        "tensors": certificate["coverage"]["hugging_face_tensors"],
        "equal_by_digest": len(certificate["inverse"]["tensors"]),
        "facts_compared": len(certificate["architecture"]["compared"]),
        "proven": certificate["proven"],
        "dtype": ", ".join(certificate["dtype"]["megatron"]),
        "bytes": sum(path.stat().st_size for path in files),
    }
