"""A model to convert, wherever it lies: where its weights are, and its other files on this disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from megatron_bridge import families
from megatron_bridge.errors import InputError
from megatron_bridge.sources import folder
from megatron_bridge.sources.ranges import LocalFile, Ranges
from megatron_bridge.sources.stored import Readable


@dataclass(frozen=True)
class Source:
    """A model's weights, and the folder with its `config.json`, tokenizer and other files.

    Another process finds the weights by it.
    """

    weights: str
    """A folder."""
    files: Path
    """A folder on this disk."""

    @classmethod
    def of_folder(cls, place: Path) -> Source:
        """Return the model in a Hugging Face folder on this disk."""
        return cls(str(place), place)

    def tensors(self, closing: ExitStack) -> tuple[dict[str, Readable], list[Ranges]]:
        """Return every tensor by name, and the files they lie in, which `closing` closes.

        Raises:
            InputError: no weight files, one that is missing or damaged, or a name in two files.
        """
        files: list[Ranges] = []

        def opened(name: str) -> Ranges:
            file = LocalFile(Path(self.weights) / name)
            closing.callback(file.close)
            files.append(file)
            return file

        present = [path.name for path in Path(self.weights).glob("*") if path.is_file()]
        found = folder.find(self.weights, present, opened)
        _refuse_quantized(self, found)
        return found, files


@contextmanager
def opened(given: Path | str) -> Iterator[Source]:
    """Yield the model that a user names: a Hugging Face folder."""
    yield Source.of_folder(Path(given).resolve())


def _refuse_quantized(source: Source, names: Collection[str]) -> None:
    scales = [name for name in names if name.endswith("_scale_inv")]
    how = families.read_config(source.files).get("quantization_config") or {}
    how = how if isinstance(how, dict) else {"quant_method": how}
    if scales or how:
        raise InputError(
            "The weights are quantised",
            where=source.weights,
            expected="weights in bfloat16, float16 or float32, and no quantization_config",
            got=f"{how.get('quant_method', 'quantised weights')}, with {len(scales)} scales",
            fix="give the model in bfloat16, or dequantise it first",
        )
