"""What a certificate shows beside coverage and inverse: architecture, logits, zero-shot loss."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import checkpoint, facts, families, reference, runs
from megatron_bridge.architecture import Building, compare
from megatron_bridge.certificate import Certificate
from megatron_bridge.config import DType, ParallelConfig, validate_layout
from megatron_bridge.conversion import Conversion
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.facts.parts import NORMALISED
from megatron_bridge.sources.source import Source

if TYPE_CHECKING:
    import torch

LOGITS, OF_LARGEST = 5e-5, 5e-6
"""Logits in float32 may differ by this, or by this share of the largest one."""
LOSS = 1e-5
"""Mean losses in float32 may differ by this."""
GAP = 1.5
"""In bfloat16 Megatron may be this much farther from float32, on average, than Hugging Face."""


@dataclass(frozen=True)
class Proof:
    """What is compared beside the tensors."""

    architecture: bool = True
    """Build the model without weights and compare it with `config.json`."""
    logits: bool = False
    """Run both models, and compare their logits."""
    tokens: Sequence[Sequence[int]] = ()
    """Ids to run them on, all of one length; without any, ids from all over the vocabulary."""
    text: Path | None = None
    """A file in UTF-8; its zero-shot loss is compared."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The layout that Megatron runs in."""

    @property
    def runs(self) -> bool:
        """True where a finished checkpoint is needed."""
        return self.logits or self.text is not None

    def check(self, model: Conversion) -> None:
        """Refuse, before hours of work, what could not be compared after them.

        Raises:
            ConfigError: the layout does not fit the model.
            InputError: the text cannot be read, or ids are of different lengths or unknown.
        """
        facts.expected(model.config)
        if not self.runs:
            return
        fields = model.family.megatron_config(model.config)
        lengths = {len(ids) for ids in self.tokens}
        validate_layout(fields, self.parallel, max(lengths, default=1))
        vocab = model.shape.vocab
        known = all(0 <= token < vocab for ids in self.tokens for token in ids)
        if len(lengths) > 1 or 0 in lengths or not known:
            raise InputError(
                "These ids cannot be compared",
                where="--tokens",
                expected=f"lists of one length, of ids from 0 to {vocab - 1}",
                got=f"lengths {sorted(lengths)}" if known else "other ids",
                fix="tokenize with the tokenizer of this model",
            )
        if self.text is not None:
            try:
                self.text.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(
                    "The text cannot be read", where=self.text, expected="UTF-8", got=error
                ) from error

    def check_source(self, source: Source) -> None:
        """Refuse to run a model that transformers cannot load as it lies.

        Raises:
            ConfigError: both models are to be run, and it is no plain folder on this disk.
        """
        if self.runs and source.weights != str(source.files):
            raise ConfigError(
                "Hugging Face's model cannot be run on these weights",
                where=source.weights,
                expected="for --logits and --text, a folder on this disk with weights that are not "
                "quantised",
                got="quantised weights, or weights elsewhere",
                fix="import and export without them, then compare the exported folder: verify "
                "EXPORTED CHECKPOINT --logits",
            )

    @contextlib.contextmanager
    def begin(self, model: Conversion) -> Iterator[Building | None]:
        """Start what can be done while tensors are converted; `model` is what is built."""
        if not self.architecture:
            yield None
            return
        with Building(model.family, model.config) as building:
            yield building


EVERYTHING, TENSORS = Proof(), Proof(architecture=False)
"""What a conversion compares by default, and the least that it can."""


def add_architecture(
    found: Certificate, model: Conversion, hf_dir: Path, building: Building | None
) -> None:
    """Compare the built model with the folder's `config.json`; `model` has the folder's rows."""
    if building is not None:
        # A native class knows no normalised output layer; its weights were normalised instead.
        settled = [NORMALISED] if found["inverse"]["rows_normalised_to_length_1"] else []
        config = families.read_config(hf_dir)
        section = compare(config, model.family, model.shape, building.result(), settled)
        _add(found, "architecture", section)


def add_answers(found: Certificate, proof: Proof, hf_dir: Path, folder: Path) -> None:
    """Run both models as the proof asks; the checkpoint must be finished."""
    if not proof.runs:
        return
    info = checkpoint.read_info(folder)
    narrow = found["dtype"]["hugging_face"] != ["float32"]
    if info.dtype == "float32" and narrow and found["dtype"]["cast"]:
        reason = "the folder's weights were rounded and the checkpoint's were not"
        sections = {"logits": {"reason": reason}, "loss": {"reason": reason}}
    else:
        rounded = info.dtype if found["dtype"]["cast"] else None
        sections = {}
        if proof.logits:
            sections["logits"] = _logits(proof, hf_dir, folder, rounded)
        if proof.text is not None:
            sections["loss"] = _loss(proof, hf_dir, folder, rounded)
    for name, section in sections.items():
        _add(found, name, section)


def _add(found: Certificate, name: str, section: dict[str, Any]) -> None:
    found["problems"] += section.pop("problems", [])
    found["holds"] = not found["problems"]
    found[name] = section


def _logits(proof: Proof, hf_dir: Path, folder: Path, rounded: str | None) -> dict[str, Any]:
    info = checkpoint.read_info(folder)
    tokens = [list(ids) for ids in proof.tokens] or _built_in(info.vocab_size, _longest(folder))
    dtypes: list[DType] = ["float32"]
    if info.dtype == "bfloat16":
        dtypes.append("bfloat16")
    with tempfile.TemporaryDirectory(prefix="megaline-") as scratch:
        theirs = Path(scratch) / "theirs.safetensors"
        answer = reference.ask(
            "logits", hf_dir, theirs, tokens=tokens, dtypes=dtypes, rounded=rounded
        )
        if "reason" in answer:
            return answer
        from safetensors.torch import load_file

        wanted, found = load_file(theirs), {}
        for dtype in dtypes:
            mine = Path(scratch) / f"{dtype}.safetensors"
            runs.logits(folder, tokens, mine, proof.parallel, dtype)
            found[dtype] = load_file(mine)["logits"].float()
    section = {
        "sequences": len(tokens),
        "tokens_each": len(tokens[0]),
        "layout": proof.parallel.model_dump(exclude_defaults=True),
        **_exact(found["float32"], wanted["float32"]),
    }
    if "bfloat16" in found:
        rough = _rough(found["bfloat16"], wanted["bfloat16"], wanted["float32"])
        section["problems"] += rough.pop("problems")
        section["bfloat16"] = rough
    return section


def _exact(found: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    difference, largest = float((found - wanted).abs().max()), float(wanted.abs().max())
    limit = max(LOGITS, OF_LARGEST * largest)
    agreement = float((found.argmax(-1) == wanted.argmax(-1)).double().mean())
    problem = f"logits differ from Hugging Face's by {difference:.2g}, by {limit:.2g} allowed"
    return {
        "problems": [] if difference <= limit else [problem],
        "float32": {
            "largest_difference": difference,
            "allowed": limit,
            "largest_logit": largest,
            "argmax_agreement": agreement,
        },
    }


def _rough(found: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """How far bfloat16 is from Hugging Face's float32: in Megatron, and in Hugging Face."""
    gaps = {
        name: {"largest": float(gap.max()), "mean": float(gap.mean())}
        for name, gap in (
            ("megatron", (found - exact).abs()),
            ("hugging_face", (theirs - exact).abs()),
        )
    }
    mine, limit = gaps["megatron"]["mean"], GAP * gaps["hugging_face"]["mean"]
    problem = f"bfloat16 logits are {mine:.2g} from float32 on average, {limit:.2g} allowed"
    return {"problems": [] if mine <= limit else [problem], "gap_to_float32": gaps}


def _loss(proof: Proof, hf_dir: Path, folder: Path, rounded: str | None) -> dict[str, Any]:
    length = _longest(folder)
    answer = reference.ask(
        "losses", hf_dir, hf_dir, text=Path(str(proof.text)).resolve(), longest=length,
        rounded=rounded,
    )  # fmt: skip
    if "error" in answer:
        raise InputError(answer["error"])
    if "reason" in answer:
        return answer
    wanted = answer["losses"]
    found = runs.token_losses(folder, answer["windows"], proof.parallel)
    pairs = list(zip(chain(*wanted), chain(*found), strict=True))
    theirs, mine = (math.fsum(side) / len(pairs) for side in zip(*pairs, strict=True))
    problem = f"the zero-shot loss differs from Hugging Face's by {mine - theirs:.2g}"
    return {
        "problems": [] if abs(mine - theirs) <= LOSS else [f"{problem}, by {LOSS:g} allowed"],
        "tokens": len(pairs),
        "layout": proof.parallel.model_dump(exclude_defaults=True),
        "hugging_face": theirs,
        "megatron": mine,
        "difference": mine - theirs,
        "largest_difference_of_a_token": max(abs(a - b) for a, b in pairs),
    }


def _longest(folder: Path) -> int:
    """Tokens of the longest sequence that the model takes."""
    config = families.read_config(folder / checkpoint.HF_FILES)
    fields = families.get(config["model_type"]).megatron_config(config)
    return int(fields["max_sequence_length"] - fields.get("position_offset", 0))


def _built_in(vocab: int, longest: int) -> list[list[int]]:
    """Two sequences of ids from all over the vocabulary."""
    length = min(64, longest)
    return [
        [(7919 * (row * length + place) + 13) % vocab for place in range(length)] for row in (0, 1)
    ]
