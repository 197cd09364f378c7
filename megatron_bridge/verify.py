"""Proof that a Hugging Face folder and a Megatron checkpoint hold the same model.

The certificate covers coverage (every tensor on each side claimed once) and the inverse (every
Hugging Face tensor equals, by digest, the one read back from the checkpoint). Whether the rows mean
the right thing is another question; logits against Hugging Face answer it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import checkpoint, families, hf, torch_dist
from megatron_bridge.config import DType
from megatron_bridge.errors import InputError, MappingError
from megatron_bridge.layouts import VOCAB, ModelShape
from megatron_bridge.mapping import Bound, Family, Slot, check

if TYPE_CHECKING:
    import torch

CERTIFICATE = "certificate.json"


@dataclass(frozen=True)
class Conversion:
    """A model's family, sizes and expanded rows: what both directions and the proof share."""

    family: Family
    config: dict[str, Any]
    shape: ModelShape
    bounds: tuple[Bound, ...]
    hf_prefix: bool = True
    """False where the Hugging Face file leaves the family's prefix off its names."""

    @classmethod
    def of_folder(cls, folder: Path, hf_prefix: bool = True) -> Conversion:
        """Read the `config.json` of a Hugging Face folder."""
        config = families.read_config(folder)
        family = families.get(config.get("model_type"))
        shape = family.shape(config)
        if not hf_prefix:
            family = family.without_prefix()
        return cls(family, config, shape, tuple(family.expand(shape)), hf_prefix)

    @classmethod
    def of_weights(cls, weights: hf.Weights) -> Conversion:
        """Read the `config.json` beside weights, and see how they name their tensors."""
        model = cls.of_folder(weights.folder)
        prefix = model.family.prefix
        if prefix and not any(name.startswith(prefix) for name in weights.names):
            return cls.of_folder(weights.folder, hf_prefix=False)
        return model

    def padded_as(self, reader: torch_dist.Reader) -> Conversion:
        """Take the padded vocabulary from a checkpoint; it may differ with tensor parallelism."""
        for bound in self.bounds:
            if bound.row.layout is VOCAB and bound.slot.key in reader.shapes():
                rows = reader.shapes()[bound.slot.key][0][0]
                if rows < self.shape.vocab:
                    raise InputError(
                        "The checkpoint's vocabulary is smaller than the config's",
                        where=f"{reader.folder}, {bound.slot.key}",
                        expected=f"at least {self.shape.vocab} rows",
                        got=f"{rows} rows",
                        fix="give the config.json that belongs to the checkpoint",
                    )
                return replace(self, shape=replace(self.shape, padded_vocab=rows))
        return self

    def pack(self, bound: Bound, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Hugging Face tensors to the Megatron tensor; errors name them."""
        try:
            return bound.row.layout.pack(parts, self.shape)
        except MappingError as error:
            raise MappingError(str(error), where=", ".join(bound.hf)) from error

    def unpack(self, bound: Bound, whole: torch.Tensor) -> list[torch.Tensor]:
        """The Megatron tensor to Hugging Face tensors."""
        return bound.row.layout.unpack(whole, self.shape)

    def hf_specs(
        self, bound: Bound, reader: torch_dist.Reader, dtype: DType | None
    ) -> list[hf.TensorSpec]:
        """Names, dtypes and shapes that `unpack` will give, without reading data."""
        import torch

        size, stored = reader.shapes()[bound.slot.key]
        tail = size[len(bound.slot.index) :]
        parts = self.unpack(bound, torch.empty(tail, dtype=stored, device="meta"))
        target = hf.dtype_of(dtype) if dtype else stored
        return [
            hf.TensorSpec(name, target, tuple(part.shape))
            for name, part in zip(bound.hf, parts, strict=True)
        ]

    def weight_names(self, weights: hf.Weights) -> list[str]:
        """Tensors of the folder that rows must claim: all but a tied model's second embedding."""
        copy = self._tied_copy(weights)
        return [name for name in weights.names if name != copy]

    def slots(self, reader: torch_dist.Reader) -> list[Slot]:
        """The checkpoint's model tensors, one entry a layer."""
        axes = {bound.slot.key: len(bound.slot.index) for bound in self.bounds}
        return [
            Slot(key, index)
            for key, (size, _) in reader.shapes().items()
            if torch_dist.is_model_key(key)
            for index in itertools.product(*map(range, size[: axes.get(key, 0)]))
        ]

    def _tied_copy(self, weights: hf.Weights) -> str | None:
        copy, original = self.family.tied
        if "untied" in self.shape.has or copy not in weights.names:
            return None
        if digest(weights.read(copy)) != digest(weights.read(original)):
            raise MappingError(
                "config.json says that the embeddings are tied, and the weights differ",
                where=f"{weights.folder}: {copy} and {original}",
                expected="equal tensors, or one of them",
                got="two different tensors",
                fix="set tie_word_embeddings to false if the output layer was trained apart",
            )
        return copy


def verify(hf_dir: Path | str, folder: Path | str) -> dict[str, Any]:
    """Compare a Hugging Face folder with a Megatron checkpoint; return the certificate.

    `certificate["holds"]` says whether they hold the same model.

    Raises:
        ConfigError, InputError: one side cannot be read.
    """
    hf_dir, folder = Path(hf_dir), Path(folder)
    checkpoint.read_info(folder)
    with hf.Weights(hf_dir) as weights:
        return certify("verify", Conversion.of_weights(weights), weights, folder)


def certify(kind: str, model: Conversion, weights: hf.Weights, folder: Path) -> dict[str, Any]:
    """Read both sides back from disk and compare them, one tensor at a time.

    Where the two differ in number format, the wider one is cast to the narrower, as the conversion
    did; the certificate says so.
    """
    with torch_dist.Reader(folder) as reader:
        model = model.padded_as(reader)
        names = model.weight_names(weights)
        problems = check(model.family, model.shape, names, model.slots(reader))
        digests: dict[str, str] = {}
        parameters = 0
        stored = {hf.dtype_name(dtype) for _, dtype in _model_shapes(reader)}
        found = {hf.dtype_name(weights.spec(name).dtype) for name in names}
        for bound in model.bounds if not problems else ():
            parts = [weights.read(name) for name in bound.hf]
            whole = reader.read(bound.slot.key, bound.slot.index)
            back = model.unpack(bound, whole)
            for name, part, other in zip(bound.hf, parts, back, strict=True):
                parameters += part.numel()
                narrow = min(part.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
                digests[name] = digest(part.to(narrow))
                if part.shape != other.shape or digests[name] != digest(other.to(narrow)):
                    problems.append(f"{name} differs from {bound.slot}")
            if kind != "export" and bound.row.layout is VOCAB and whole[model.shape.vocab :].any():
                problems.append(f"{bound.slot} holds values in the padding of the vocabulary")
        others = sorted(key for key in reader.shapes() if not torch_dist.is_model_key(key))
    carried = _compare_files(weights.folder, folder, problems if kind == "verify" else [])
    return {
        "kind": kind,
        "holds": not problems,
        "problems": problems,
        "model_type": model.family.model_type,
        "parameters": parameters,
        "dtype": {
            "hugging_face": sorted(found),
            "megatron": sorted(stored),
            "cast": found != stored,
        },
        "vocabulary": {"true": model.shape.vocab, "padded": model.shape.padded_vocab},
        "coverage": {
            "hugging_face_tensors": len(names),
            "megatron_tensors": len(model.bounds),
            "buffers_left_out": [name for name in names if model.family.is_buffer(name)],
            "tied_copies_left_out": sorted(set(weights.names) - set(names)),
            "other_checkpoint_tensors": len(others),
        },
        "inverse": {"algorithm": "sha256", "tensors": digests},
        "files": carried,
    }


def digest(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's bytes, row-major."""
    import torch

    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().data
    return hashlib.sha256(raw).hexdigest()


def _model_shapes(reader: torch_dist.Reader) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [shape for key, shape in reader.shapes().items() if torch_dist.is_model_key(key)]


def _compare_files(hf_dir: Path, folder: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Digests of the files beside the weights, and whether both sides agree."""
    left = {path.name: path for path in hf.carried_files(hf_dir)}
    carried = folder / checkpoint.HF_FILES
    right = {path.name: path for path in hf.carried_files(carried)} if carried.is_dir() else {}
    table = {}
    for name in sorted(left.keys() | right.keys()):
        sums = [_file_digest(side[name]) for side in (left, right) if name in side]
        equal = len(sums) == 2 and sums[0] == sums[1]
        table[name] = {"sha256": sums[0], "equal": equal}
        if not equal:
            where = "" if len(sums) == 2 else " (one side only)"
            problems.append(f"the file {name} differs{where}")
    return table


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
