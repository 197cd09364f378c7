"""Packed chat datasets: what is written, what is read back, and that conversations stay apart."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import chat_cases as chat
import numpy as np
import pytest
from chat_cases import CHATML, turns
from transformers import AutoTokenizer

from megatron_bridge.data.packs import Pack, Packs
from tasks.core.errors import InputError, ProofError
from tasks.core.fingerprint import sha256_file
from tasks.tokens import invariants, lines
from tasks.tokens.sft import dataset, encode, files, packing, template

LONGEST = 300
BROKEN = ['{"messages"\n', "[]\n", "\n", '{"text": "no chat"}\n']


def rows(count: int) -> list[dict[str, Any]]:
    """Conversations of 1 to 3 answers, each with words of its own, some longer than a pack."""
    draw, found = random.Random(5), []
    for number in range(count):
        said = [f"{number}:" + "x" * draw.randrange(90) for _ in range(draw.choice([2, 4, 6]))]
        found.append(turns(*map("{}: {}".format, itertools.cycle("ua"), said), id=f"row {number}"))
    return found


def write(folder: Path, workers: int = 1, source: Path | None = None, **changes: Any) -> Any:
    """Write a dataset of a source, or of `rows` and broken ones."""
    model = chat.write_model(folder / "model", CHATML)
    if source is None:
        source = folder / "rows.jsonl"
        source.write_text("".join([*BROKEN, *(json.dumps(row) + "\n" for row in rows(200))]))
    settings = {"sequence_length": LONGEST, **changes}
    file, chat_template = model / "tokenizer.json", template.load(model)
    rules = encode.Rules(file, sha256_file(file), 267, chat_template, **settings)
    prefix = folder / "train"
    return dataset.write([source], prefix, rules, 0, workers, quiet), prefix


def quiet(*_: Any, **__: Any) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write(tmp_path_factory.mktemp("made"))


def apart(sample: Pack) -> list[str]:
    """What mixes conversations in a sample."""
    wrong, borders = [], sample.cu_seqlens.tolist()
    for begin, end in itertools.pairwise(borders):
        if sample.position_ids[begin:end].tolist() != list(range(end - begin)):
            wrong.append("positions")
        if sample.loss_mask[end - 1]:
            wrong.append("loss over a border")
        if sample.labels[begin : end - 1].tolist() != sample.tokens[begin + 1 : end].tolist():
            wrong.append("labels")
    return wrong if (borders[0], borders[-1]) == (0, len(sample.tokens)) else [*wrong, "ends"]


def test_every_conversation_is_whole_in_one_pack_and_apart(made: Any) -> None:
    told, prefix = made
    tokenizer = AutoTokenizer.from_pretrained(prefix.parent / "model")
    packs = files.open_packs(prefix)
    samples = [packs[number] for number in range(len(packs))]
    assert not any(map(apart, samples))
    seen: Counter[str] = Counter()
    for sample in samples:
        for begin, end in itertools.pairwise(sample.cu_seqlens.tolist()):
            seen[tokenizer.decode(sample.tokens[begin:end].tolist())] += 1
    padding = [text for text in seen if not text.replace("<|endoftext|>", "")]
    assert sum(seen.pop(text) for text in padding) <= len(samples)
    # By hand: a byte is a token, a turn of ChatML has 3 special tokens or line breaks more.
    kept, loss = [], 0
    for row in rows(200):
        turns_of = [(m["role"], m["content"]) for m in row["messages"]]
        if sum(len(role) + len(said) + 4 for role, said in turns_of) <= LONGEST:
            kept.append("".join(f"<|im_start|>{r}\n{said}<|im_end|>\n" for r, said in turns_of))
            loss += sum(len(said) + 1 for role, said in turns_of if role == "assistant")
    assert seen == Counter(kept)
    assert (told["conversations"], told["loss_tokens"]) == (len(kept), loss)
    assert sum(int(sample.loss_mask.sum()) for sample in samples) == loss
    assert told["reasons"]["longer than sequence_length"] == 200 - len(kept) > 20
    assert told["fill"] > 0.9
    # Controls: a border moved by one, and a mask that is not cut at the borders.
    sample = next(sample for sample in samples if len(sample.cu_seqlens) > 2)
    moved = sample.cu_seqlens.copy()
    moved[1] += 1
    assert {"positions", "labels"} <= set(apart(sample._replace(cu_seqlens=moved)))
    assert apart(sample._replace(loss_mask=sample.loss_mask + 1))
    assert apart(sample._replace(labels=np.roll(sample.tokens, 1)))


def test_borders_and_positions_are_all_that_isolation_takes() -> None:
    """Another first conversation moves no logit of the others; each is as it would be alone."""
    import torch
    import transformers

    sizes = {"hidden_size": 36, "intermediate_size": 44, "vocab_size": 267}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 12}
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, **heads, initializer_range=0.3)
    ).eval()
    draw = np.random.default_rng(0)
    lengths, others = np.array([17, 23, 13], np.int32), draw.integers(0, 267, 36)

    def logits(first: np.ndarray, isolated: bool = True) -> Any:
        ids, mask = np.concatenate([first, others]), np.ones(53, np.uint8)
        sample = Packs(ids, mask, lengths, np.array([0, 3]), 64, 0)[0]
        owners = torch.tensor(np.repeat(np.arange(4), np.diff(sample.cu_seqlens)))
        seen = torch.ones(64, 64, dtype=torch.bool).tril()
        if isolated:
            seen &= owners[:, None] == owners
        with torch.no_grad():
            return model(
                torch.tensor(sample.tokens)[None],
                attention_mask=torch.zeros(1, 1, 64, 64).masked_fill(~seen, -1e30),
                position_ids=torch.tensor(sample.position_ids)[None],
            ).logits[0]

    one, two = draw.integers(0, 267, (2, 17))
    assert torch.equal(logits(one)[17:53], logits(two)[17:53])
    with torch.no_grad():
        alone = model(torch.tensor(others[:23])[None]).logits[0]
    assert (logits(one)[17:40] - alone).abs().max() < 1e-4
    # Control: without the borders they move.
    assert (logits(one, False)[17:53] - logits(two, False)[17:53]).abs().max() > 1e-2


def test_megatron_reads_conversations_as_sequences_and_packs_as_documents(made: Any) -> None:
    _, prefix = made
    script = f"""
import json
from megatron.core.datasets.indexed_dataset import IndexedDataset
ids, mask = IndexedDataset("{prefix}"), IndexedDataset("{prefix}_mask")
print(json.dumps([
    [x.tolist() for x in ids], [x.tolist() for x in mask],
    ids.document_indices.tolist(), mask.document_indices.tolist(),
]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids, mask, *ends = json.loads(done.stdout.splitlines()[-1])
    packs = files.open_packs(prefix)
    assert ends == [packs.packs.tolist()] * 2
    for number in range(len(packs)):
        whole = ids[packs.packs[number] : packs.packs[number + 1]]
        bears = mask[packs.packs[number] : packs.packs[number + 1]]
        flat = list(itertools.chain(*whole))
        sample = packs[number]
        assert sample.tokens[: len(flat)].tolist() == flat
        shifted = [bear for one in bears for bear in [*one[1:], 0]]
        assert sample.loss_mask[: len(flat)].tolist() == shifted
        assert sample.cu_seqlens[: len(whole) + 1].tolist() == [
            0, *itertools.accumulate(map(len, whole))
        ]  # fmt: skip


def test_workers_and_blocks_do_not_change_a_byte(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made[1].parent / "rows.jsonl"
    monkeypatch.setattr(lines, "_SMALLEST", 5000)
    monkeypatch.setattr(lines, "_OF_A_CORPUS", 100)
    assert len(list(lines.blocks([source]))) > 5
    write(tmp_path, 2, source)
    names = [path.name for path in made[1].parent.glob("train*")]
    assert len(names) == 7
    for name in names:
        assert (tmp_path / name).read_bytes() == (made[1].parent / name).read_bytes(), name


def test_where_each_row_went_is_written_down(made: Any) -> None:
    told, prefix = made
    raw = (prefix.parent / "rows.jsonl").read_bytes()
    listed, aside = (
        [json.loads(line) for line in Path(f"{prefix}_{name}.jsonl").read_text().splitlines()]
        for name in ("documents", "set_aside")
    )
    reasons = ["no JSON", "no JSON object", "an empty line", "neither messages nor conversations"]
    assert [row["reason"] for row in aside[:4]] == reasons
    assert (len(aside), len(listed)) == (told["set_aside"], told["conversations"])
    packs = files.open_packs(prefix)
    for number, row in enumerate(listed):
        start, stop = row["range"]
        assert json.loads(raw[start:stop])["id"] == row["id"]
        assert row["conversation"] == number
        assert packs.packs[row["pack"]] <= number < packs.packs[row["pack"] + 1]
    assert sum(row["loss_tokens"] for row in listed) == told["loss_tokens"]


def test_what_is_too_long_can_lose_its_end(tmp_path: Path) -> None:
    told, prefix = write(tmp_path, too_long="truncate", sequence_length=60)
    assert told["truncated"] > 20
    assert told["reasons"]["no token bears loss"] > 20
    assert max(invariants.read(prefix).lengths) == 60


def test_all_tokens_may_bear_loss_but_the_first(tmp_path: Path) -> None:
    told, prefix = write(tmp_path, loss="all")
    assert told["loss_tokens"] == told["tokens"] - told["conversations"]
    assert not any(apart(sample) for sample in map(files.open_packs(prefix).__getitem__, range(9)))


def test_best_fit_places_each_once_and_wastes_little() -> None:
    draw = random.Random(2)
    for longest in (7, 100, 4096):
        lengths = [draw.randrange(1, longest + 1) for _ in range(300)]
        packs = packing.best_fit(lengths, longest)
        assert sorted(itertools.chain(*packs)) == list(range(300))
        assert all(sum(lengths[place] for place in pack) <= longest for pack in packs)
        # Best-fit decreasing needs at most 11/9 of the best packing, and 1 more.
        least = max(-(-sum(lengths) // longest), sum(2 * length > longest for length in lengths))
        assert len(packs) <= 11 / 9 * least + 1


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    _, prefix = write(tmp_path)
    mask = Path(f"{prefix}_mask.bin")
    whole = mask.read_bytes()
    mask.write_bytes(whole[:-1])
    with pytest.raises(ProofError, match="do not fit"):
        files.open_packs(prefix)
    mask.write_bytes(whole)
    other = files.Writer(tmp_path / "other", np.dtype("<u2"))
    with other:
        other.add([encode.Chat(np.arange(3), np.ones(3, np.uint8), {})])
    for end in (".bin", ".idx"):
        (tmp_path / f"other_mask{end}").replace(f"{prefix}_mask{end}")
    with pytest.raises(ProofError, match="Ids and mask"):
        files.open_packs(prefix)
    Path(f"{prefix}_tokens.json").unlink()
    with pytest.raises(InputError, match="no finished chat dataset"):
        files.open_packs(prefix)


def test_a_models_own_tokenizer_lies_beside(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(turns("u: hi", "a: hello")))
    prefix = tmp_path / "out" / "train"
    model = chat.write_model(tmp_path / "model", CHATML)
    told = dataset.make([source], prefix, model, quiet, 1, sequence_length=64)
    assert (told["loss_tokens"], told["pad"], told["vocab_size"]) == (6, 0, 267)
    assert told["tokenizer_sha256"] == sha256_file(tmp_path / "out" / "train_tokenizer.json")
    assert len(files.open_packs(prefix)) == 1
    assert len(list(prefix.parent.iterdir())) == 8


def test_no_conversation_is_an_error_that_says_why(tmp_path: Path) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_text("".join(BROKEN))
    with pytest.raises(InputError, match=r"No conversation is left.*no JSON \(1\)"):
        write(tmp_path, source=source)
    assert not (tmp_path / "train_tokens.json").exists()
