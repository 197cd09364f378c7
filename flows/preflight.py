"""What can be refused before any work: a layout or a length that does not fit the model."""

from __future__ import annotations

from collections.abc import Collection

from flows.config import PipelineConfig
from megatron_bridge import families
from megatron_bridge.config import ParallelConfig, validate_layout
from tasks.core.artifacts import Artifact
from tasks.evaluate import harness
from tasks.model import folder


def check(config: PipelineConfig, sealed: Artifact | None, wanted: Collection[str]) -> None:
    """Hold the recipe against the model's `config.json`; reads neither weights nor torch.

    A GGUF file tells its shape only once it is converted. Until then nothing is checked here; what
    starts the ranks asks the same questions.

    Args:
        config: the whole line's.
        sealed: the output of the stage `model`, where it is there.
        wanted: the stages that are to run.

    Raises:
        ConfigError: no such family, or the model cannot be laid out, or read, as the recipe says;
            or lm-eval is asked for and not installed.
        InputError: the model's configuration cannot be read.
    """
    if "evaluate" in wanted and config.evaluate.lm_eval_tasks:
        harness.require()
    place = folder.locate(config.model.source) or (sealed.path / "data" if sealed else None)
    if place is None or not {"to_megatron", "train"} & set(wanted):
        return
    hf_config = families.read_config(place)
    fields = families.get(hf_config.get("model_type")).megatron_config(hf_config)
    if "train" in wanted:
        validate_layout(fields, config.train, config.train.sequence_length, "train.")
    if "evaluate" in wanted:
        validate_layout(fields, ParallelConfig(), config.evaluate.sequence_length, "evaluate.")
