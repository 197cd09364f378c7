"""A model to convert, wherever it lies: where its weights are, and its other files on this disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from megatron_bridge import families
from megatron_bridge.sources import folder, fp8, gguf, remote_folder
from megatron_bridge.sources.address import Address, parse
from megatron_bridge.sources.ranges import LocalFile, Ranges
from megatron_bridge.sources.remote import RemoteFile, Seen
from megatron_bridge.sources.stored import Readable


@dataclass(frozen=True)
class Source:
    """A model's weights, and the folder with its `config.json`, tokenizer and other files.

    Threads open the weights by it.
    """

    weights: str
    """A folder or a GGUF file, or a URL without its secrets."""
    files: Path
    """A folder on this disk."""
    blocks: fp8.Blocks | None = None
    """How the weights are quantised."""
    address: Address | None = None
    """Where the weights are if they are not on this disk."""
    present: tuple[str, ...] = ()
    """The names of the files there."""
    fetched: int = 0
    """Bytes of the files that were brought to this disk."""
    name: str = ""
    """The model's own, where a GGUF file has one."""
    is_gguf: bool = False
    """True where the weights, and all beside them, come from GGUF files."""
    seen: Seen = field(default_factory=Seen, repr=False, compare=False)
    """What is known of the files elsewhere, for all who open them."""

    @classmethod
    def of_folder(cls, place: Path) -> Source:
        """Return the model in a Hugging Face folder on this disk."""
        return cls(str(place), place)

    def tensors(self, closing: ExitStack) -> tuple[dict[str, Readable], list[Ranges]]:
        """Return every tensor by name, and the files they lie in, which `closing` closes.

        Raises:
            InputError: no weight files, one that is missing or damaged, a name in two files, or
                weights that are quantised in a way that is not supported.
        """
        files: list[Ranges] = []

        def opened(name: str) -> Ranges:
            file = self._open(name)
            closing.callback(file.close)
            # The index of weights elsewhere was brought here, to another place in every run.
            if self.address is None or isinstance(file, RemoteFile):
                files.append(file)
            return file

        if self.is_gguf:
            return gguf.tensors(self.files, opened), files
        present = [path.name for path in Path(self.weights).glob("*") if path.is_file()]
        found = folder.find(self.weights, self.present or present, opened)
        return fp8.dequantised(found, self.blocks, self.weights), files

    def _open(self, name: str) -> Ranges:
        if self.address is None:
            place = Path(self.weights)
            return LocalFile((place if place.is_dir() else place.parent) / name)
        if name.endswith(folder.INDEX_SUFFIX):
            return LocalFile(self.files / name)
        return RemoteFile(self.address.join(name), self.seen)


@contextmanager
def opened(given: Path | str, to: str | None = None) -> Iterator[Source]:
    """Yield the model that a user names: a Hugging Face folder or a GGUF file.

    Args:
        given: the folder or file, or its URL as text.
        to: the number format that quantised weights become; by default the model's own.
    """
    with tempfile.TemporaryDirectory(prefix="megaline-") as scratch:
        place = parse(given)
        if gguf.is_one(place.name):
            yield _of_gguf(place, Path(scratch))
            return
        if isinstance(place, Path):
            source = Source.of_folder(place.resolve())
        else:
            (files := Path(scratch) / "files").mkdir()
            present, fetched = remote_folder.fetch(place, files)
            source = Source(place.shown, files, address=place, present=present, fetched=fetched)
        yield _settled(source, Path(scratch), to)


def _of_gguf(place: Path | Address, scratch: Path) -> Source:
    """Make a folder of a GGUF file's facts."""
    if isinstance(place, Path):
        # Links are kept: the parts of a model lie beside the link.
        source, name = Source(str(place.absolute()), scratch), place.name
    else:
        address, name = place.split()
        source = Source(place.shown, scratch, address=address)
    with ExitStack() as closing:
        files: dict[str, Ranges] = {}

        def opened(part: str) -> Ranges:
            if part not in files:
                files[part] = source._open(part)
                closing.callback(files[part].close)
            return files[part]

        own = gguf.unpack(name, opened, scratch)
        fetched = sum(file.fetched for file in files.values() if isinstance(file, RemoteFile))
    return replace(source, name=own, fetched=fetched, is_gguf=True)


def _settled(source: Source, scratch: Path, to: str | None) -> Source:
    """Find out how weights are quantised; they are not any more when they have been read."""
    config = families.read_config(source.files)
    blocks = fp8.read_blocks(config, source.weights, to)
    if blocks is None:
        return source
    for path in source.files.iterdir():
        if path.is_file() and path.name != "config.json":
            (scratch / path.name).symlink_to(path)
    kept = {key: value for key, value in config.items() if key != fp8.ENTRY}
    text = json.dumps(kept, indent=2, ensure_ascii=False)
    (scratch / "config.json").write_text(text + "\n", encoding="utf-8")
    return replace(source, files=scratch, blocks=blocks)
