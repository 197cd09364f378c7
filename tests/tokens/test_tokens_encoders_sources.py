"""What a tokenizer may come from, each against the library that made it."""

from __future__ import annotations

import base64
import json
import shutil
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from encoder_cases import DOCUMENTS, QWEN, train
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GPT2TokenizerFast

from tasks.core.errors import InputError
from tasks.tokens.encoders import byte_level, fuzz, load
from tasks.tokens.encoders.choice import choose
from tasks.tokens.tokenizer import Prepared, prepare

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
TEXTS = [*DOCUMENTS[:40], *fuzz.texts([], ["</s>", "<doc>", "<|endoftext|>"], size=300)]


def ids_of(prepared: Prepared) -> list[list[int]]:
    encoder = load(choose(prepared.spec, DOCUMENTS[:5]).spec)
    return [encoder.encode([text])[0].tolist() for text in TEXTS]


def write_model(folder: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 5000}))
    return folder


def ranks_of(tokenizer: Tokenizer) -> dict[bytes, int]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return {byte_level.unspell(token): number for token, number in vocabulary.items()}


def write_tiktoken(file: Path, ranks: dict[bytes, int]) -> Path:
    lines = [
        base64.b64encode(token) + b" %d\n" % ranks[token] for token in sorted(ranks, key=ranks.get)
    ]  # type: ignore[arg-type]
    file.write_bytes(b"".join(lines))
    return file


@pytest.mark.parametrize("folder", ["toy", "qwen"])
def test_a_model_folder_is_what_auto_tokenizer_loads(tmp_path: Path, folder: str) -> None:
    source = TOY if folder == "toy" else write_model(tmp_path / "model", train("qwen"))
    prepared = prepare(source, tmp_path)
    theirs = AutoTokenizer.from_pretrained(source)
    assert ids_of(prepared) == [theirs.encode(text, add_special_tokens=False) for text in TEXTS]
    assert prepared.size == len(theirs)
    assert prepared.end_of_document == theirs.convert_tokens_to_ids("<|endoftext|>")
    assert prepared.spec.file == tmp_path / "tokenizer.json"


def test_special_tokens_around_are_told_and_not_written(tmp_path: Path) -> None:
    tokenizer = train("gpt2")
    start = tokenizer.token_to_id("<|im_start|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    source = write_model(tmp_path / "model", tokenizer)
    prepared = prepare(source, tmp_path)
    assert prepared.around == ([start], [])
    theirs = AutoTokenizer.from_pretrained(source)
    assert theirs("some text").input_ids[0] == start
    assert start not in load(prepared.spec).encode(["some text"])[0]


def test_vocabulary_and_merges(tmp_path: Path) -> None:
    train("gpt2").model.save(str(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    # Words that are keys in other tokenizers' files; GPT-2 has them as tokens.
    vocabulary |= {"model": 1200, "config": 1201, "<|endoftext|>": 1202}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    theirs = GPT2TokenizerFast(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt")
    )
    expected = [theirs.encode(text, add_special_tokens=False) for text in TEXTS]
    for name in (".", "vocab.json", "merges.txt"):
        out = tmp_path / f"out-{name}"
        out.mkdir()
        prepared = prepare(tmp_path / name, out)
        assert ids_of(prepared) == expected
        assert (prepared.size, prepared.end_of_document) == (1203, 1202)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"merges\.txt beside vocab\.json"):
        prepare(tmp_path / "vocab.json", tmp_path)


def test_a_tiktoken_file_needs_its_pattern(tmp_path: Path) -> None:
    ranks = ranks_of(train("qwen"))
    file = write_tiktoken(tmp_path / "some.tiktoken", ranks)
    with pytest.raises(InputError, match=r"no file we know.*cl100k"):
        prepare(file, tmp_path)
    with pytest.raises(InputError, match=r"no regular expression.*parenthesis"):
        prepare(file, tmp_path, pattern="(")
    prepared = prepare(file, tmp_path, pattern="qwen")
    assert prepared.end_of_document == len(ranks)
    theirs = tiktoken.Encoding(
        "theirs", pat_str=QWEN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)}
    )
    assert ids_of(prepared) == [theirs.encode(text, allowed_special="all") for text in TEXTS]
    (tmp_path / "bad.tiktoken").write_bytes(b"IQ== 0\nIg== one\n")
    with pytest.raises(InputError, match="rank on each line"):
        prepare(tmp_path / "bad.tiktoken", tmp_path, pattern="qwen")


@pytest.mark.parametrize("kind", ["tekken", "megatron"])
def test_a_table_of_ranks_is_megatrons_tik_tokenizer(tmp_path: Path, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.tokenizers.text.libraries import tiktoken_tokenizer

    ranks = ranks_of(train("qwen"))
    ordered = sorted(ranks, key=lambda token: (len(token) > 1, token if len(token) == 1 else b""))
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ordered)
    ]
    size = len(ranks) + 1000
    file = tmp_path / f"{kind}.json"
    file.write_text(json.dumps(vocabulary))
    theirs = tiktoken_tokenizer.TikTokenTokenizer(str(file), vocab_size=size)
    if kind == "tekken":
        special = enumerate(["<unk>", "<s>", "</s>"])
        table = {
            "config": {
                "pattern": theirs.tokenizer._pat_str,
                "default_vocab_size": size,
                "default_num_special_tokens": 1000,
            },
            "vocab": vocabulary,
            "special_tokens": [{"rank": rank, "token_str": token} for rank, token in special],
        }
        file.write_text(json.dumps(table))
    prepared = prepare(file, tmp_path)
    texts = [text for text in TEXTS if "<pad>" not in text]
    encoder = load(prepared.spec)
    assert [encoder.encode([t])[0].tolist() for t in texts] == [*map(theirs.text_to_ids, texts)]
    assert (prepared.size, prepared.end_of_document) == (size, theirs.eos_id)


def test_hugging_face_ids_are_megatrons(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.tokenizers.text.libraries import huggingface_tokenizer

    source = write_model(tmp_path / "model", train("qwen"))
    theirs = huggingface_tokenizer.HuggingFaceTokenizer(str(source))
    prepared = prepare(source, tmp_path)
    assert ids_of(prepared) == [theirs.text_to_ids(text) for text in TEXTS]
    assert prepared.size == theirs.vocab_size


@pytest.fixture(scope="module")
def sentencepiece_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentencepiece")
    for kind in ("bpe", "unigram"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("\n".join(DOCUMENTS).split("\n")), model_type=kind,
            model_prefix=str(folder / kind), vocab_size=1000, byte_fallback=kind == "bpe",
            character_coverage=0.98, user_defined_symbols=["<doc>"], minloglevel=2,
            normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
            remove_extra_whitespaces=kind != "bpe", num_threads=1,
        )  # fmt: skip
    return folder


@pytest.mark.parametrize(("kind", "runs"), [("bpe", "gigatoken"), ("unigram", "sentencepiece")])
def test_a_sentencepiece_model(
    sentencepiece_models: Path, tmp_path: Path, kind: str, runs: str
) -> None:
    prepared = prepare(sentencepiece_models / f"{kind}.model", tmp_path)
    chosen = choose(prepared.spec, DOCUMENTS[:5])
    assert chosen.spec.encoder == runs, chosen
    theirs = sentencepiece.SentencePieceProcessor(
        model_file=str(sentencepiece_models / f"{kind}.model")
    )
    # Megatron-LM's SentencePieceTokenizer is this call.
    assert ids_of(prepared) == [theirs.encode_as_ids(text) for text in TEXTS]
    assert (prepared.size, prepared.end_of_document) == (1000, theirs.eos_id())


def test_a_tokenizer_in_python_only(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    (source / "config.json").write_text('{"model_type": "t5", "vocab_size": 384}')
    prepared = prepare(source, tmp_path)
    assert (prepared.spec.encoder, prepared.around) == ("slow", ([], [1]))
    theirs = AutoTokenizer.from_pretrained(source)
    assert ids_of(prepared) == [theirs.encode(text, add_special_tokens=False) for text in TEXTS]


def test_tokenizers_that_know_nothing_are_refused(tmp_path: Path) -> None:
    # transformers 5 makes an empty tokenizer of these without a word.
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (empty / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 50257}')
    assert len(AutoTokenizer.from_pretrained(empty)) < 5
    with pytest.raises(InputError, match="makes no tokens"):
        prepare(empty, tmp_path)
    unknown = Tokenizer(models.WordLevel({"<unk>": 0, "<|endoftext|>": 1}, unk_token="<unk>"))
    unknown.pre_tokenizer = pre_tokenizers.Whitespace()
    unknown.save(str(tmp_path / "unknown.json"))
    with pytest.raises(InputError, match="nothing but its unknown token"):
        prepare(tmp_path / "unknown.json", tmp_path)


def test_what_is_no_tokenizer_is_refused_by_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, held, said in (
        ("none", None, "no such tokenizer"),
        ("a.model", b"\x00\x01 not a model", "no tokenizer's file"),
        ("tokenizer.json", b'{"model": {"type": "Nothing"}}', "cannot be read"),
        ("broken.json", b'{"model": ', "cannot be read"),
        ("tekken.json", b'{"config": {}}', "table of ranks"),
    ):
        if held is not None:
            (tmp_path / name).write_bytes(held)
        with pytest.raises(InputError, match=said):
            prepare(tmp_path / name, out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no tokenizer in this folder"):
        prepare(tmp_path / "empty", out)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ([1], 0), ({"eos_token": {}}, 0), ({"eos_token": 3}, 0), ({"eos_token": "b"}, "b"),
        ({"eos_token": {"content": "b"}}, "b"),
    ],
)  # fmt: skip
def test_what_lies_beside_a_tokenizer_json_may_be_nothing(
    tmp_path: Path, settings: Any, ends: str | int
) -> None:
    train("gpt2").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "out").mkdir()
    found = prepare(tmp_path / "tokenizer.json", tmp_path / "out", as_megatron=True)
    assert found.end_of_document_token == (ends or "<|endoftext|>")


def test_code_of_the_models_own_is_not_run(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", train("gpt2"))
    (source / "tokenizer.json").unlink()
    settings = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(InputError, match="cannot be loaded"):
        prepare(source, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_normal_forms_are_the_tokenizers(tmp_path: Path) -> None:
    prepared = prepare(write_model(tmp_path / "model", train("qwen")), tmp_path)
    encoder = load(choose(prepared.spec, [], ["tiktoken"]).spec)
    assert encoder.name == "tiktoken"
    both = [unicodedata.normalize(form, "caf\u00e9 \ud55c\uae00") for form in ("NFC", "NFD")]
    assert both[0] != both[1]
    assert encoder.encode(both[:1])[0].tolist() == encoder.encode(both[1:])[0].tolist()


def test_a_copy_of_the_prepared_file_has_the_same_digest(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", train("gpt2"))
    first = prepare(source / "tokenizer.json", tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    shutil.copyfile(first.spec.file, again / "x.json")
    assert prepare(again / "x.json", again).spec.sha256 == first.spec.sha256
