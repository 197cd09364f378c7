"""What people set for a training run, with the checks across fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megatron_bridge.errors import ConfigError

DType = Literal["float32", "bfloat16"]


class ParallelConfig(BaseModel):
    """How a model is spread over ranks. `world size = data x tensor x pipeline x context`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: int = Field(1, ge=1, description="Ranks that share each weight matrix (TP)")
    pipeline_parallel: int = Field(1, ge=1, description="Ranks that share the layers (PP)")
    context_parallel: int = Field(1, ge=1, description="Ranks that share each sequence (CP)")
    expert_parallel: int = Field(1, ge=1, description="Ranks that share the experts (EP)")
    sequence_parallel: bool = Field(
        False, description="Split norms and dropouts along the sequence; needs tensor_parallel > 1"
    )

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the model: TP x PP x CP."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


class TrainConfig(ParallelConfig):
    """A training run. Batch sizes are in sequences, lengths in tokens, rates per step."""

    world_size: int = Field(1, ge=1, description="Number of ranks (processes)")
    steps: int = Field(12, ge=1, description="Optimizer steps")
    sequence_length: int = Field(512, ge=2, description="Tokens a sample")
    micro_batch_size: int = Field(1, ge=1, description="Sequences a rank handles at once")
    global_batch_size: int = Field(2, ge=1, description="Sequences a step, over all ranks")
    learning_rate: float = Field(1e-4, ge=0)
    min_learning_rate: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "cosine"
    weight_decay: float = Field(0.1, ge=0, description="Not applied to norms and biases")
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    adam_eps: float = Field(1e-8, gt=0)
    clip_grad: float = Field(1.0, ge=0, description="Largest gradient norm; 0 switches clipping off")
    seed: int = Field(1234, ge=0)
    dtype: DType = "float32"
    distributed_optimizer: bool = Field(
        True, description="Spread the optimizer's state over the data-parallel ranks"
    )
    checkpoint_every: int = Field(4, ge=1, description="Steps between resume points")
    checkpoints_kept: int = Field(2, ge=1, description="Resume points kept during the run")
    megatron: dict[str, Any] = Field(
        default_factory=dict,
        description="Further fields of Megatron's TransformerConfig, checked by name",
    )

    @property
    def data_parallel(self) -> int:
        """Copies of the model."""
        return self.world_size // self.model_parallel

    @property
    def micro_batches(self) -> int:
        """Micro-batches a step on each data-parallel rank."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel)

    @model_validator(mode="after")
    def _divides(self) -> TrainConfig:
        if self.world_size % self.model_parallel:
            raise ConfigError(
                "The layout does not divide the ranks",
                where="world_size",
                expected=f"a multiple of TP x PP x CP = {self.model_parallel}",
                got=self.world_size,
                fix="change world_size or the parallel sizes",
            )
        per_pass = self.micro_batch_size * self.data_parallel
        if self.global_batch_size % per_pass:
            raise ConfigError(
                "The global batch does not divide",
                where="global_batch_size",
                expected=f"a multiple of micro_batch_size x data-parallel ranks = {per_pass}",
                got=self.global_batch_size,
                fix="change global_batch_size, micro_batch_size or world_size",
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "Sequence parallelism without tensor parallelism",
                where="sequence_parallel",
                expected="tensor_parallel > 1",
                got="tensor_parallel = 1",
                fix="raise tensor_parallel or leave sequence_parallel off",
            )
        if self.warmup_steps > self.steps:
            raise ConfigError(
                "The warm-up is longer than the run",
                where="warmup_steps",
                expected=f"at most steps = {self.steps}",
                got=self.warmup_steps,
                fix="lower warmup_steps or raise steps",
            )
        return self
