"""The table of what users get wrong: what is done, and what the command must say.

A case prepares its folder and returns the command's arguments.
"""

from __future__ import annotations

import bz2
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
RECIPE = {
    "ingest": {"source": "./dump.xml"},
    "clean": {"workers": 1},
    "model": {"source": str(TOY), "seed": 1234},
    "tokens": {"workers": 1, "validation": 0.1, "test": 0.1},
    "train": {"steps": 1, "global_batch_size": 1, "sequence_length": 64},
    "evaluate": {"sequence_length": 64, "max_tokens": 256, "min_tokens": 200},
}
MEGALINE, BRIDGE = "flows.cli", "megatron_bridge.__main__"
Arguments = Sequence[object]


@dataclass(frozen=True)
class Place:
    """A case's folder, with `recipe.yaml`, `dump.xml` and `store/` as they should be."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def sealed(self, stage: str) -> Path:
        """The data of the one sealed output of a stage."""
        (data,) = self.store.glob(f"{stage}/*/*/data")
        return data

    def model(self, name: str = "model") -> Path:
        """A copy of the good model, to damage."""
        copy = self.folder / name
        shutil.copytree(self.sealed("model"), copy)
        for path in copy.iterdir():
            path.chmod(0o644)
        return copy

    def run(self, *words: object, until: str | None = None) -> Arguments:
        end = ["--until", until] if until else []
        return ["run", self.recipe, *words, *end, "--root", self.store]

    def plan(self, *words: object) -> Arguments:
        return ["plan", self.recipe, *words, "--root", self.store]


@dataclass(frozen=True)
class Case:
    """`prepare` returns the arguments; `says` are words that the paragraph holds."""

    name: str
    prepare: Callable[[Place], Arguments]
    says: tuple[str, ...]
    code: int = 2
    module: str = MEGALINE


def write_dump(path: Path, articles: int = 60) -> None:
    """A MediaWiki dump of plain prose."""
    pages = "".join(
        f"<page><title>Town {n}</title><ns>0</ns><id>{n}</id><revision><id>{n}</id>"
        f"<model>wikitext</model><text>{_prose(n)}</text></revision></page>\n"
        for n in range(1, articles + 1)
    )
    path.write_text(
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">\n'
        "<siteinfo><base>https://en.wikipedia.org/wiki/Main_Page</base></siteinfo>\n"
        f"{pages}</mediawiki>\n"
    )


def write_recipe(folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


def _prose(number: int) -> str:
    return (
        f"The town of number {number} has {number * 2 + 2} houses, and it is known for the bridge "
        f"that was built in {1801 + number} by the people of the valley. "
        f"Its market hall, which holds {number * 3 + 3} traders on a busy day, stands where two "
        f"rivers meet and was paid for in {1802 + number} with the taxes on salt. "
        f"A school for {number * 4 + 4} children opened behind the church during {1803 + number}, "
        "although most families still needed every pair of hands at harvest. "
        f"From the hill one can see {number * 5 + 5} chimneys, since the mill burned coal until "
        f"{1804 + number} and then took its power from the dam upstream. "
        f"Today {number * 6 + 6} visitors a week come by train, many of them to walk along the old "
        f"wall, which soldiers had left half finished in {1805 + number}."
    )


def _edited(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Place], Arguments]:
    """A model whose JSON file `name` is changed."""

    def prepare(place: Place) -> Arguments:
        folder = place.model()
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value))
        return place.run(f"model.source={folder}", "model.seed=null", until="to_megatron")

    return prepare


def _tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Place], Arguments]:
    """A model whose weights are changed."""

    def prepare(place: Place) -> Arguments:
        from safetensors.torch import load_file, save_file

        folder = place.model()
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return place.run(f"model.source={folder}", "model.seed=null", until="to_megatron")

    return prepare


def _planned(*words: str) -> Callable[[Place], Arguments]:
    return lambda place: place.plan(*words)


def _source(name: str, content: bytes, until: str = "clean") -> Callable[[Place], Arguments]:
    def prepare(place: Place) -> Arguments:
        (place.folder / name).write_bytes(content)
        return place.run(f"ingest.source={place.folder / name}", until=until)

    return prepare


def _empty_folder(place: Place) -> Arguments:
    (place.folder / "empty").mkdir()
    return place.plan(f"ingest.source={place.folder / 'empty'}")


def _parquet(place: Place) -> Arguments:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": ["a"]}), place.folder / "rows.parquet")
    return place.run(f"ingest.source={place.folder / 'rows.parquet'}", until="clean")


def _truncated(place: Place) -> Arguments:
    whole = bz2.compress((place.folder / "dump.xml").read_bytes())
    return _source("dump.xml.bz2", whole[: len(whole) // 2])(place)


def _pickled(place: Place) -> Arguments:
    folder = place.model()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    return place.run(f"model.source={folder}", "model.seed=null", until="to_megatron")


def _damaged(place: Place) -> Arguments:
    folder = place.model()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    return place.run(f"model.source={folder}", "model.seed=null", until="to_megatron")


def _tokenizer(change: Callable[[dict[str, Any]], None]) -> Callable[[Place], Arguments]:
    def prepare(place: Place) -> Arguments:
        _edited("tokenizer.json", change)(place)
        folder = place.folder / "model"
        return place.run(f"model.source={folder}", "model.seed=null", until="tokens")

    return prepare


def _beyond(value: dict[str, Any]) -> None:
    added = dict(value["added_tokens"][0]) | {"id": 4321, "content": "<|stranger|>"}
    value["added_tokens"].append(added)


def _no_config(place: Place) -> Arguments:
    (place.folder / "model").mkdir()
    return place.plan(f"model.source={place.folder / 'model'}")


def _store_is_a_file(place: Place) -> Arguments:
    (place.folder / "file").write_text("not a store")
    return ["run", place.recipe, "--root", place.folder / "file"]


def _recipe_of(text: str) -> Callable[[Place], Arguments]:
    def prepare(place: Place) -> Arguments:
        place.recipe.write_text(text)
        return place.plan()

    return prepare


def _bridge(*words: str) -> Callable[[Place], Arguments]:
    """Words in which {model}, {checkpoint}, {folder} and {train} stand for good things."""

    def prepare(place: Place) -> Arguments:
        names = {
            "model": place.sealed("model"), "folder": place.folder,
            "checkpoint": place.sealed("to_megatron") / "checkpoint",
            "train": place.sealed("tokens") / "train",
        }  # fmt: skip
        (place.folder / "ids.json").write_text("[[1, 2, 3]]")
        (place.folder / "text.json").write_text("[[1, 2], [3, 99999]]")
        return [word.format(**names) for word in words]

    return prepare


_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\2\0\0\0"
_LAYER = "model.layers.0.mlp.up_proj.weight"

RECIPES = [
    Case("unknown key", _planned("train.stepz=3"), ("train.steps",)),
    Case("unknown stage", _planned("trian.steps=3"), ("trian", "train")),
    Case("wrong type", _planned("train.steps=many"), ("train.steps", "integer", "many")),
    Case("wrong choice", _planned("train.decay=sideways"), ("train.decay", "cosine")),
    Case("no override", _planned("steps"), ("stage.field=value",)),
    Case("no recipe", lambda place: ["plan", place.folder / "none.yaml"], ("none.yaml",)),
    Case("recipe is a folder", lambda place: ["plan", place.folder], ("a YAML file",)),
    Case("recipe is no YAML", _recipe_of("ingest: [1,"), ("not YAML", "line 1")),
    Case("recipe is no table", _recipe_of("- 1"), ("one table a stage",)),
    Case("recipe is empty", _recipe_of(""), ("one table a stage",)),
    Case("recipe is not text", lambda place: _binary(place), ("UTF-8",)),
    Case("unknown stage name", lambda place: place.run(until="nowhere"), ("until", "train")),
    Case("store is a file", lambda place: _store_is_a_file(place), ("no folder", "--root")),
    Case("no held-out text", _planned("tokens.test=0", "tokens.validation=0"), ("tokens.test",)),
]  # fmt: skip


def _binary(place: Place) -> Arguments:
    place.recipe.write_bytes(_PNG)
    return place.plan()


LAYOUTS = [
    Case("world", _planned("train.world_size=3", "train.tensor_parallel=2"), ("train.world_size",)),
    Case("heads", _planned("train.world_size=3", "train.tensor_parallel=3"),
         ("train.tensor_parallel", "heads")),
    Case("key-value heads", lambda place: _kv_heads(place), ("key-value heads",)),
    Case("layers", _planned("train.world_size=3", "train.pipeline_parallel=3",
                            "train.global_batch_size=2"),
         ("train.pipeline_parallel", "4 layers")),
    Case("global batch", _planned("train.world_size=2", "train.global_batch_size=3"),
         ("train.global_batch_size", "multiple")),
    Case("sequence parallel alone", _planned("train.sequence_parallel=true"),
         ("train.sequence_parallel", "tensor_parallel > 1")),
    Case("a loss without logits", _planned("train.megatron.cross_entropy_fusion_impl=linear"),
         ("train.megatron.cross_entropy_fusion_impl", "native or te", "padded", "linear")),
    Case("sequence too long", _planned("train.sequence_length=5000"),
         ("train.sequence_length", "512 positions", "5000")),
    Case("window too long", _planned("evaluate.sequence_length=5000"),
         ("evaluate.sequence_length", "512 positions")),
    Case("run refuses it too", lambda place: place.run("train.sequence_length=5000"),
         ("train.sequence_length",)),
]  # fmt: skip


def _kv_heads(place: Place) -> Arguments:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    _edited("config.json", lambda config: config.update(sizes))(place)
    return place.plan(
        f"model.source={place.folder / 'model'}", "train.world_size=2", "train.tensor_parallel=2"
    )


_LONG_EVALUATION = ("evaluate.min_tokens=100000", "evaluate.max_tokens=200000")

SOURCES = [
    Case("no such file", _planned("ingest.source=/no/such/dump.xml.bz2"), ("/no/such/dump",)),
    Case("an empty folder", lambda place: _empty_folder(place), ("no file", "ingest.source")),
    Case("a pattern", _planned("ingest.source=/no/such/*.jsonl"), ("/no/such/*.jsonl",)),
    Case("a pattern that matches nothing", _planned(f"ingest.source={TOY}/*.parquet"),
         ("No file matches", "toy/*.parquet")),
    Case("no source", _planned("ingest.source=[]"), ("ingest.source", "a list")),
    Case("the same source twice", _planned(f"ingest.source=[{TOY}, {TOY}/*.json]"),
         ("same file", "config.json")),
    Case("a digest of two files", _planned(f"ingest.source={TOY}", f"ingest.sha256={'a' * 64}"),
         ("asked of several files",)),
    Case("empty file", _source("dump.xml", b""), ("empty", "0 bytes")),
    Case("text of some words", _source("notes.txt", b"Some words.\n" * 9),
         ("No article was left",), 1),
    Case("HTML", _source("page.html", b"<!DOCTYPE html><html><body>404</body></html>"),
         ("MediaWiki", "html")),
    Case("PNG", _source("picture.png", _PNG), ("MediaWiki", "PNG")),
    Case("binary in bz2", _source("notes.bz2", bz2.compress(_PNG)), ("MediaWiki", "PNG")),
    Case("an archive", _source("corpus.tar.gz", b"x"), ("unpack it",)),
    Case("an archive without its name", _source("corpus", b"PK\3\4"), ("zip", "unpack it")),
    Case("one JSON list", _source("rows.json", b'[{"text": "a"}, {"text": "b"}]'),
         ("jq -c '.[]'",)),
    Case("pretty JSON", _source("rows.json", b'{\n "text": "a",\n "id": 1\n}\n'), ("jq -c .",)),
    Case("UTF-16", _source("notes.txt", "Some words".encode("utf-16")), ("UTF-16", "iconv")),
    Case("no text in Parquet", lambda place: _parquet(place), ("clean.text_field", "body")),
    Case("truncated Parquet", _source("rows.parquet", b"PAR1 and so on"), ("damaged or ends",)),
    Case("no keys for OSS", _planned("ingest.source=oss://bucket/*.jsonl"),
         ("OSS_ACCESS_KEY_ID", "no other place")),
    Case("a chain of URLs", _planned("ingest.source=zip://x::https://host/y"), ("chain",)),
    Case("a folder of a web server", _planned("ingest.source=https://host/data/"),
         ("name every file",)),
    Case("truncated bz2", _truncated, ("damaged or ends early", "clean.on_damage=keep")),
    Case("wrong digest", _planned(f"ingest.sha256={'a' * 64}"),
         ("not the file that was asked for", "sha256")),
    Case("unknown scheme", _planned("ingest.source=gopher://host/dump"), ("gopher", "package://")),
    Case("unknown package", _planned("ingest.source=package://no_such_package/dump.xml"),
         ("no_such_package", "pip install")),
    Case("out of a package", _planned("ingest.source=package://yaml/../../../../etc/passwd"),
         ("leads out of its package",)),
    Case("no article left", lambda place: place.run("clean.min_words=100000", until="clean"),
         ("No article was left", "at least one article"), 1),
    Case("too little held-out text",
         lambda place: place.run(*_LONG_EVALUATION, until="evaluate"),
         ("too little held-out text", "tokens.test"), 1),
    Case("too little held-out text, seen before training",
         lambda place: place.run(*_LONG_EVALUATION, "tokens.seed=5", until="evaluate"),
         ("train failed. There is too little held-out text", "tokens.test"), 1),
    Case("evaluation is never long enough", _planned("evaluate.min_tokens=300"),
         ("evaluate.max_tokens", "300")),
]  # fmt: skip

MODELS = [
    Case("no config", _no_config, ("config.json",)),
    Case("no such folder", _planned("model.source=/no/such/model"), ("/no/such/model",)),
    Case("missing tensor", _tensors(lambda tensors: tensors.pop(_LAYER)), (_LAYER,)),
    Case("surplus tensor",
         _tensors(lambda tensors: tensors.update({"model.extra.weight": tensors[_LAYER] + 0})),
         ("model.extra.weight",)),
    Case("pickled weights", _pickled, ("pytorch_model.bin", "*.safetensors")),
    Case("damaged weights", _damaged, ("model.safetensors",)),
    Case("other model's config",
         _edited("config.json", lambda config: config.update(intermediate_size=77)),
         ("mlp.gate_proj", "154")),
    Case("unknown family",
         _edited("config.json", lambda config: config.update(model_type="lama")), ("llama",)),
    Case("config is no JSON", lambda place: _broken_config(place), ("config.json", "JSON")),
    Case("no weights, no seed", lambda place: place.run("model.seed=null", until="model"),
         ("no weights", "model.seed")),
    Case("ids beyond the vocabulary", _tokenizer(_beyond), ("<|stranger|>", "vocab_size")),
    Case("no end-of-document",
         lambda place: place.run("tokens.end_of_document=<|nothing|>", until="tokens"),
         ("end-of-document", "<|nothing|>")),
    Case("tokenizer is no JSON", lambda place: _broken_tokenizer(place), ("tokenizer",)),
]  # fmt: skip


def _broken_config(place: Place) -> Arguments:
    folder = place.model()
    (folder / "config.json").write_text("{")
    return place.plan(f"model.source={folder}", "model.seed=null")


def _broken_tokenizer(place: Place) -> Arguments:
    folder = place.model()
    (folder / "tokenizer.json").write_text("{")
    return place.run(f"model.source={folder}", "model.seed=null", until="tokens")


BRIDGES = [
    Case("no folder", _bridge("import", "/no/such", "{folder}/out"), ("/no/such",)),
    Case("not empty", _bridge("import", "{model}", "{folder}"), ("{folder}",)),
    Case("no checkpoint", _bridge("export", "{model}", "{folder}/out"), ("checkpoint",)),
    Case("no ids", _bridge("logits", "{checkpoint}", "--tokens", "{folder}/none.json", "--out",
                           "{folder}/out"), ("none.json",)),
    Case("ids beyond", _bridge("logits", "{checkpoint}", "--tokens", "{folder}/text.json",
                               "--out", "{folder}/out"), ("99999",)),
    Case("too many ranks", _bridge("logits", "{checkpoint}", "--tokens", "{folder}/ids.json",
                                   "--out", "{folder}/out", "--tp", "3"),
         ("tensor_parallel", "heads")),
    Case("unknown field", _bridge("train", "{checkpoint}", "--data", "{train}",
                                  "--end-of-document", "0", "--out", "{folder}/out", "--set",
                                  "stepz=3"), ("stepz", "steps")),
    Case("no data", _bridge("train", "{checkpoint}", "--data", "/no/data", "--end-of-document",
                            "0", "--out", "{folder}/out"), ("/no/data",)),
    Case("unknown command", lambda place: ["improt"], ("improt", "import")),
]  # fmt: skip
BRIDGES = [Case(c.name, c.prepare, c.says, c.code, BRIDGE) for c in BRIDGES]

TABLE = [*RECIPES, *LAYOUTS, *SOURCES, *MODELS, *BRIDGES]
