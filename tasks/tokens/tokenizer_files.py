"""The kinds of files that hold a tokenizer, each brought into a form that workers load."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tasks.core.errors import InputError
from tasks.tokens import auto_tokenizer, ranks
from tasks.tokens.encoders import Name

_DOCUMENT = "<|endoftext|>"


@dataclass(frozen=True)
class Read:
    """What one kind of source comes to; the files are written."""

    kind: str
    own: Name
    file: Path
    eos_token: str | None = None


def read(source: Path, out: Path, pattern: str | None) -> Read:
    """Read what `tokenizer.prepare` takes, and write tokenizer.json, tokenizer.model or `slow/`.

    Raises:
        InputError: it is nothing of that kind, or broken.
    """
    return _folder(source, out, pattern) if source.is_dir() else _file(source, out, pattern)


def read_json(file: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            "A tokenizer's file cannot be read", where=file, expected="JSON", got=error
        ) from error


def _folder(folder: Path, out: Path, pattern: str | None) -> Read:
    names = {file.name for file in folder.iterdir() if file.is_file()}
    if names & {"config.json", "tokenizer_config.json"}:
        facts = auto_tokenizer.resolve(folder, out)
        slow = out / auto_tokenizer.SLOW
        if slow.is_dir():
            return Read(facts["kind"], "slow", slow, facts["eos_token"])
        return Read(facts["kind"], "hugging_face", out / "tokenizer.json", facts["eos_token"])
    for name in ("tokenizer.json", "vocab.json", "tekken.json"):
        if name in names:
            return _file(folder / name, out, pattern)
    files = sorted(name for name in names if name.endswith((".model", ".tiktoken")))
    if len(files) == 1:
        return _file(folder / files[0], out, pattern)
    raise InputError(
        "There is no tokenizer in this folder", where=folder,
        expected="config.json or tokenizer_config.json; or tokenizer.json, vocab.json and "
        "merges.txt, tekken.json, or one *.model or *.tiktoken file",
        got=", ".join(sorted(names)) or "an empty folder", fix="name the tokenizer's file",
    )  # fmt: skip


def _file(file: Path, out: Path, pattern: str | None) -> Read:
    if not file.is_file():
        raise InputError(
            "There is no such tokenizer", where=file, expected="a file or a model folder",
            got="nothing there", fix="name the tokenizer's file, or the model's folder",
        )  # fmt: skip
    if file.name == "merges.txt":
        file = file.with_name("vocab.json")
    with open(file, "rb") as opened:
        head = opened.read(1 << 12)
    target = out / "tokenizer.json"
    if head.lstrip()[:1] not in (b"{", b"["):
        if not ranks.is_tiktoken(head):
            return _sentencepiece(file, out)
        ranks.from_tiktoken(file, pattern).save(str(target))
        return Read("tiktoken", "hugging_face", target, None)
    described = read_json(file)
    # Both words are tokens in GPT-2's vocabulary, too.
    if isinstance(described, dict) and isinstance(described.get("model"), dict):
        uncut = {**described, "padding": None, "truncation": None}
        if uncut == described:
            shutil.copyfile(file, target)
        else:
            target.write_text(json.dumps(uncut, ensure_ascii=False, indent=1), encoding="utf-8")
        return Read("tokenizer.json", "hugging_face", target, _eos_beside(file))
    if isinstance(described, dict) and not isinstance(described.get("config"), dict):
        _gpt2(file).save(str(target))
        return Read("vocab.json and merges.txt", "hugging_face", target, None)
    ranks.from_table(file, described, pattern).save(str(target))
    return Read("table of ranks", "hugging_face", target, "</s>")


def _sentencepiece(file: Path, out: Path) -> Read:
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(
            "A SentencePiece model needs a package that is not installed", where=file,
            expected="sentencepiece", got="no such package",
            fix="pip install megaline[sentencepiece]",
        ) from error  # fmt: skip
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
    except (RuntimeError, OSError) as error:
        raise InputError(
            "This is no tokenizer's file", where=file,
            expected="a tokenizer.json, a SentencePiece model or a tiktoken file", got=error,
        ) from error  # fmt: skip
    shutil.copyfile(file, out / "tokenizer.model")
    eos = processor.id_to_piece(processor.eos_id()) if processor.eos_id() >= 0 else None
    return Read("SentencePiece", "sentencepiece", out / "tokenizer.model", eos)


def _gpt2(vocabulary: Path) -> Tokenizer:
    merges = vocabulary.with_name("merges.txt")
    if not merges.is_file():
        raise InputError(
            "GPT-2's tokenizer is two files", where=vocabulary,
            expected="merges.txt beside vocab.json", got="none", fix="put them into one folder",
        )  # fmt: skip
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises no narrower one
        raise InputError(
            "GPT-2's tokenizer cannot be read", where=vocabulary,
            expected="vocab.json and merges.txt as GPT-2's", got=error,
        ) from error  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if tokenizer.token_to_id(_DOCUMENT) is not None:
        tokenizer.add_special_tokens([_DOCUMENT])
    return tokenizer


def _eos_beside(file: Path) -> str | None:
    settings = file.with_name("tokenizer_config.json")
    if not settings.is_file():
        return None
    found: Any = read_json(settings)
    token = found.get("eos_token") if isinstance(found, dict) else None
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
