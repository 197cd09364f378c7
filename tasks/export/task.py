"""export: a bundle that PAI-EAS can serve, and the proof that what is served was trained."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from megatron_bridge import certificate
from tasks.core.artifacts import EasService, EvalReport, HFModel, MegatronCheckpoint
from tasks.core.errors import ProofError
from tasks.core.fingerprint import Runtime
from tasks.core.stage import Context, stage


class ExportConfig(BaseModel):
    """The service, and the proof that goes with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    proof: bool = Field(
        True, description="Serve the folder here, and compare its tokens with Megatron's"
    )
    prompts: tuple[str, ...] = Field(
        ("The capital of France is", "The history of science shows that"),
        min_length=1,
        description="Texts that the proof continues",
    )
    max_tokens: int = Field(16, ge=1, description="New tokens a prompt")
    unproven: Annotated[bool, Runtime] = Field(
        False, description="Take a model whose certificate is missing or does not hold"
    )
    service_name: str = Field(
        "megaline", pattern="^[a-z][a-z0-9_]{0,62}$", description="The EAS service"
    )
    image: str = Field("vllm/vllm-openai:v0.11.0", description="Container image with vLLM")
    instance_type: str = Field(
        "ecs.gn7i-c8g1.2xlarge", description="EAS instance type (this one has one A10 GPU)"
    )
    instances: int = Field(1, ge=1, description="Copies of the service")
    oss_path: str = Field(
        "oss://YOUR-BUCKET/models/megaline/",
        pattern="^oss://[^/]+/.+/$",
        description="Where you upload the bundle's model/ to",
    )


def _label(config: ExportConfig, inputs: list[str]) -> str:
    return f"{config.service_name}-{inputs[0]}"


@stage("export", version=1, output=EasService, label=_label)
def export(
    config: ExportConfig,
    ctx: Context,
    exported: HFModel,
    trained: MegatronCheckpoint,
    report: EvalReport,
) -> dict[str, Any]:
    """Write the bundle for a model that its evaluation let through, and prove what it serves."""
    from tasks.export import eas

    reason = certificate.doubt(exported.folder)
    certificate.require(
        reason, "The model", exported.folder, config.unproven, "export.unproven=true"
    )
    _let_through(report, exported)
    service = eas.Service(
        config.service_name, config.image, config.instance_type, config.instances, config.oss_path
    )
    eas.write(exported.folder, service, ctx.out)
    if not config.proof:
        return {
            "service": config.service_name, "proven": reason is None, "proof": "not asked for",
        }  # fmt: skip
    from tasks.export import proof

    rows = proof.compare(
        ctx.out / "model", trained.checkpoint, config.prompts, config.max_tokens,
        ctx.scratch / "serve.log", ctx.progress,
    )  # fmt: skip
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (ctx.out / "proof.json").write_text(text, encoding="utf-8")
    _equal(rows)
    columns = ("served_text", "megatron_text", "served_tokens", "megatron_tokens", "compared")
    return {
        "service": config.service_name,
        "proven": reason is None,
        "tokens_equal": True,
        **{name: [row[name] for row in rows] for name in columns},
    }


def _let_through(report: EvalReport, exported: HFModel) -> None:
    """Refuse a model that was not evaluated, or did not pass."""
    passed = json.loads(report.report.read_text(encoding="utf-8"))["passed"]
    evaluated = [entry.fingerprint for entry in report.record.inputs if entry.name == "exported"]
    if not passed or evaluated != [exported.fingerprint]:
        raise ProofError(
            "The evaluation did not let this model through", where=report.report,
            expected=f"a passed evaluation of {exported.fingerprint}",
            got=f"passed: {passed}, of {', '.join(evaluated) or 'another model'}",
            fix="evaluate this model, and look why it does not pass",
        )  # fmt: skip


def _equal(rows: list[dict[str, Any]]) -> None:
    wrong = [row for row in rows if not row["tokens_equal"]]
    if wrong:
        raise ProofError(
            "The served model does not say what the trained checkpoint says",
            where=f"prompt {wrong[0]['prompt']!r}",
            expected=f"{wrong[0]['megatron_text']!r} {wrong[0]['megatron_tokens']}",
            got=f"{wrong[0]['served_text']!r} {wrong[0]['served_tokens']}",
            fix="compare both: python -m megatron_bridge verify HF_DIR CKPT",
        )  # fmt: skip
