"""What can be refused before any work: a layout or a length that does not fit the model.

And, before any training, held-out text that is too short to measure its gain on, and a blend that
asks for more than is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from flows.config import PipelineConfig
from megatron_bridge import families
from megatron_bridge.config import ParallelConfig, validate_layout
from tasks.core import tokenizer_files
from tasks.core.artifacts import Artifact, TokenDataset
from tasks.evaluate import harness, heldout
from tasks.model import folder
from tasks.train import blend


def check(config: PipelineConfig, sealed: Mapping[str, Artifact], wanted: Collection[str]) -> None:
    """Hold the recipe against the model's `config.json`; reads neither weights nor torch.

    A GGUF file tells its shape only once it is converted. Until then nothing is checked here; what
    starts the ranks asks the same questions.

    Args:
        config: the whole line's.
        sealed: the outputs that are there, by stage.
        wanted: the stages that are to run.

    Raises:
        ConfigError: no such family, or the model cannot be laid out, or read, as the recipe says;
            or lm-eval is asked for and not installed.
        InputError: the model's configuration cannot be read.
        ProofError: see `check_held_out`; or a tokenizer changed under its dataset.
    """
    if "evaluate" in wanted and config.evaluate.lm_eval_tasks:
        harness.require()
    if "tokens" in sealed:
        check_held_out(config, sealed["tokens"], wanted)
        samples_by_source(config, sealed["tokens"], wanted)
        recorded = sealed["tokens"].metrics.get("tokenizer_files")
        if recorded and "model" in sealed and "train" in wanted:
            tokenizer_files.require_same(recorded, sealed["model"].data, sealed["tokens"].data)
    if not {"to_megatron", "train"} & set(wanted):
        return
    place = folder.locate(config.model.source) or (
        sealed["model"].data if "model" in sealed else None
    )
    if place is None:
        return
    hf_config = families.read_config(place)
    fields = families.get(hf_config.get("model_type")).megatron_config(hf_config)
    if "train" in wanted:
        validate_layout(fields, config.train, config.train.sequence_length, "train.")
    if "evaluate" in wanted:
        validate_layout(fields, ParallelConfig(), config.evaluate.sequence_length, "evaluate.")


def check_held_out(config: PipelineConfig, tokens: Artifact, wanted: Collection[str]) -> None:
    """Refuse, as soon as the tokens are there, what `evaluate` would refuse after the training.

    Raises:
        ProofError: fewer ids are kept from training than are to be measured on.
    """
    if "evaluate" in wanted:
        ids = sum(tokens.metrics["splits"][split]["tokens"] for split in heldout.SPLITS)
        wants = config.evaluate
        heldout.require(ids, wants.sequence_length, wants.max_tokens, wants.min_tokens, tokens.data)


def samples_by_source(
    config: PipelineConfig, tokens: Artifact, wanted: Collection[str]
) -> list[dict[str, Any]]:
    """The table of what training would take of each dataset; empty where it is not wanted.

    Raises:
        ConfigError, InputError, ProofError: see `tasks.train.blend.table`.
    """
    if "train" not in wanted:
        return []
    wants = config.train
    dataset = cast(TokenDataset, tokens)
    return blend.table(wants.blend, dataset, wants.samples, wants.sequence_length)
