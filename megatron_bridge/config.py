"""What people set for a training run, with the checks across fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from megatron_bridge.errors import ConfigError

DType = Literal["float32", "bfloat16"]
Form = Literal["original", "native"]
"""Names and `config.json` of an exported model: its own, or those of transformers' equal class."""


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

    prefix: ClassVar[str] = ""
    """Put before a field's name in errors, such as `train.`."""

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
    clip_grad: float = Field(
        1.0, ge=0, description="Largest gradient norm; 0 switches clipping off"
    )
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

    @property
    def samples(self) -> int:
        """Sequences that the whole run takes."""
        return self.steps * self.global_batch_size

    @field_validator("megatron")
    @classmethod
    def _padding_stays_hidden(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # Some versions know "linear", which puts another module in the output layer's place: one
        # that computes the loss without logits, so that the vocabulary's padding would count.
        name, known = "cross_entropy_fusion_impl", ("native", "te")
        if fields.get(name, "native") not in known:
            raise ConfigError(
                "This loss does not see that the vocabulary is padded",
                where=f"{cls.prefix}megatron.{name}",
                expected=f"{' or '.join(known)}, which compute it from the logits",
                got=fields[name],
                fix=f"remove megatron.{name}, or give one of these",
            )
        return fields

    @model_validator(mode="after")
    def _divides(self) -> TrainConfig:
        if self.world_size % self.model_parallel:
            raise self._wrong(
                "The layout does not divide the ranks",
                "world_size",
                f"a multiple of TP x PP x CP = {self.model_parallel}",
                "change world_size or the parallel sizes",
            )
        per_pass = self.micro_batch_size * self.data_parallel
        if self.global_batch_size % per_pass:
            raise self._wrong(
                "The global batch does not divide",
                "global_batch_size",
                f"a multiple of micro_batch_size x data-parallel ranks = {per_pass}",
                "change global_batch_size, micro_batch_size or world_size",
            )
        if self.data_parallel % self.expert_parallel:
            raise self._wrong(
                "The experts cannot be spread over the ranks",
                "expert_parallel",
                f"a divisor of the {self.data_parallel} data-parallel ranks, which share them",
                "change expert_parallel or world_size",
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise self._wrong(
                "Sequence parallelism without tensor parallelism",
                "sequence_parallel",
                "False, or tensor_parallel > 1",
                "raise tensor_parallel or leave sequence_parallel off",
            )
        if self.warmup_steps > self.steps:
            raise self._wrong(
                "The warm-up is longer than the run",
                "warmup_steps",
                f"at most steps = {self.steps}",
                "lower warmup_steps or raise steps",
            )
        if self.min_learning_rate > self.learning_rate:
            raise self._wrong(
                "The smallest learning rate is larger than the learning rate",
                "min_learning_rate",
                f"at most learning_rate = {self.learning_rate}",
                "lower min_learning_rate",
            )
        return self

    def _wrong(self, what: str, name: str, expected: str, fix: str) -> ConfigError:
        got = getattr(self, name)
        return ConfigError(what, where=self.prefix + name, expected=expected, got=got, fix=fix)


class DataSource(BaseModel):
    """One of the indexed datasets that a run draws its samples from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: Path = Field(description="Path without .bin and .idx")
    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Its share of the samples")
    repeats: bool = Field(False, description="It may be gone through more than once")
    name: str = Field("", description="What it is called in tables; its prefix without one")


class TrainSpec(BaseModel):
    """One training job, as its ranks read it from a JSON file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TrainConfig
    checkpoint: Path = Field(description="The checkpoint to start from")
    train_data: Path | tuple[DataSource, ...] = Field(
        description="Prefix of the training split's .bin and .idx, which is gone through as often "
        "as the steps ask for; or several datasets with weights"
    )
    end_of_document: int = Field(ge=0, description="Token id that ends each document")
    run_dir: Path = Field(description="Log, ledger and checkpoints; a later call resumes from it")
    index_dir: Path | None = Field(
        None, description="Where indices of samples are kept for other runs; in run_dir without it"
    )
    unproven: bool = Field(
        False, description="Take a checkpoint whose certificate is missing or does not hold"
    )

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """What the samples are drawn from, in the order of the weights."""
        if isinstance(self.train_data, Path):
            return (DataSource(prefix=self.train_data, repeats=True),)
        return self.train_data


class ForwardSpec(BaseModel):
    """One job without gradients, as its ranks read it from a JSON file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Literal["logits", "losses", "generate"]
    checkpoint: Path
    tokens: list[list[int]]
    out: Path
    parallel: ParallelConfig = ParallelConfig()
    dtype: DType = "float32"
    max_new_tokens: int = Field(0, ge=0)


def validate_layout(
    fields: Mapping[str, Any],
    parallel: ParallelConfig,
    sequence_length: int,
    prefix: str = "",
) -> None:
    """Check a layout against a model, before any rank starts.

    Args:
        fields: what `Family.megatron_config` returns for the model's `config.json`.
        parallel: the layout.
        sequence_length: tokens a sample.
        prefix: put before a field's name in the error, such as `train.`.

    Raises:
        ConfigError: the model cannot be laid out like this.
    """
    for key in ("window_attn_skip_freq", "moe_layer_freq"):
        kinds = fields.get(key)
        if isinstance(kinds, list) and len(kinds) != fields["num_layers"]:
            # The last pipeline stage would fail alone, and the others wait for it for ever.
            raise ConfigError(
                "The model's family does not say the kind of every layer",
                where=key,
                expected=f"{fields['num_layers']} entries, one a layer",
                got=f"{len(kinds)} entries",
                fix="correct the family's file in megatron_bridge/families",
            )
    for holds, where, expected, got in _rules(fields, parallel, sequence_length):
        if not holds:
            raise ConfigError(
                "The model cannot be laid out like this",
                where=prefix + where,
                expected=expected,
                got=got,
                fix=f"change {prefix}{where}",
            )


def _rules(
    fields: Mapping[str, Any], parallel: ParallelConfig, length: int
) -> tuple[tuple[bool, str, str, object], ...]:
    """Whether each rule holds, the field that it is about, what it asks for, and what is there."""
    tensor, layers = parallel.tensor_parallel, fields["num_layers"]
    groups, experts = fields["num_query_groups"], fields.get("num_moe_experts") or 0
    # OPT's table of positions begins with rows that no token uses.
    longest = fields["max_sequence_length"] - fields.get("position_offset", 0)
    # Without sequence parallelism the experts' gradients come out times TP, and the gradient of
    # latent attention's rotary key, which all heads share, is never summed; logits would be right.
    shared = "experts" if experts else "latent attention"
    needs_sum = tensor > 1 and bool(experts or fields.get("multi_latent_attention"))
    return (
        (layers % parallel.pipeline_parallel == 0, "pipeline_parallel",
         f"a divisor of the model's {layers} layers", parallel.pipeline_parallel),
        (groups % tensor == 0 or tensor % groups == 0, "tensor_parallel",
         f"a divisor or a multiple of the model's {groups} key-value heads", tensor),
        *((size % tensor == 0, "tensor_parallel",
           f"a divisor of the model's {what}, {size}", tensor)
          for what, size in _split_sizes(fields).items()),
        (parallel.sequence_parallel or not needs_sum, "sequence_parallel",
         f"true, for a model with {shared} under tensor_parallel = {tensor}", False),
        (experts > 0 or parallel.expert_parallel == 1, "expert_parallel",
         "1, for a model without experts", parallel.expert_parallel),
        (experts % parallel.expert_parallel == 0, "expert_parallel",
         f"a divisor of the model's {experts} experts", parallel.expert_parallel),
        (length <= longest, "sequence_length", f"at most the model's {longest} positions", length),
        (not parallel.sequence_parallel or length % tensor == 0, "sequence_length",
         f"a multiple of tensor_parallel = {tensor} under sequence_parallel", length),
        (parallel.context_parallel == 1, "context_parallel",
         "1: sequences are not split over ranks yet", parallel.context_parallel),
    )  # fmt: skip


def _split_sizes(fields: Mapping[str, Any]) -> dict[str, int]:
    """What tensor parallelism cuts into equal parts, by name."""
    sizes = {"attention heads": fields["num_attention_heads"]}
    kinds = fields.get("moe_layer_freq", 1)
    if not fields.get("num_moe_experts") or (isinstance(kinds, list) and 0 in kinds):
        sizes["feed-forward size"] = fields["ffn_hidden_size"]
    if fields.get("num_moe_experts"):
        sizes["experts' size"] = fields["moe_ffn_hidden_size"]
        sizes["shared experts' size"] = fields.get("moe_shared_expert_intermediate_size") or 0
    if fields.get("multi_latent_attention"):
        sizes["query latent"] = fields["q_lora_rank"] or 0
        sizes["key-value latent and rotary key"] = (
            fields["kv_lora_rank"] + fields["qk_pos_emb_head_dim"]
        )
    return sizes
