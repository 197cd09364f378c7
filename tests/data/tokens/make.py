"""Make the golden files anew: `python tests/data/tokens/make.py MEGATRON_LM GPT2 QWEN3`.

Each argument is a folder: Megatron-LM's source tree (the files here are from commit d98e8a64 of
2026-08-22, with transformers 5 and nltk 3.10), OpenAI's GPT-2 (vocab.json and merges.txt; MIT
licence) and Qwen3 (tokenizer.json and tokenizer_config.json; Apache 2.0). Megatron-LM's tool reads
whole tokenizers; what is kept of them here is what the texts need, with the same ids: merges that
take no part in these texts are left out.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parents[2]), str(HERE.parents[1] / "tokens")]

import megatron_lm_tool  # noqa: E402
import numpy as np  # noqa: E402


def main(tree: Path, gpt2: Path, qwen3: Path) -> None:
    for name, tokenizer, pruned in (("gpt2", gpt2, _gpt2), ("qwen3", qwen3, _qwen3)):
        out = HERE / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for case, (source, flags) in megatron_lm_tool.CASES.items():
            with tempfile.TemporaryDirectory() as home:
                # It writes the sentences beside its input.
                copy = Path(shutil.copy(HERE / f"{source}.jsonl", home))
                megatron_lm_tool.preprocess(
                    tree, tokenizer, copy, out / case, *flags, workers=1, home=Path(home)
                )
        dtype = "<u2" if name == "gpt2" else "<i4"
        ids = {int(id_) for file in out.glob("*.bin") for id_ in np.fromfile(file, dtype)}
        pruned(tokenizer, out, ids)


def _gpt2(folder: Path, out: Path, ids: set[int]) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    lines = (folder / "merges.txt").read_text().splitlines()
    kept = _needed([tuple(line.split(" ")) for line in lines[1:] if line], vocabulary, ids)
    (out / "vocab.json").write_text(json.dumps(_vocabulary(vocabulary, kept), ensure_ascii=False))
    told = "".join(f"{one} {two}\n" for one, two in kept)
    (out / "merges.txt").write_text(f"{lines[0]}\n{told}")


def _qwen3(folder: Path, out: Path, ids: set[int]) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    model = described["model"]
    merges = [tuple(one if isinstance(one, list) else one.split(" ")) for one in model["merges"]]
    kept = _needed(merges, model["vocab"], ids)
    # An added token keeps its id only where the model's vocabulary has it, too.
    added = {token["content"]: token["id"] for token in described["added_tokens"]}
    model["vocab"] = {**_vocabulary(model["vocab"], kept), **added}
    model["merges"] = [list(pair) for pair in kept]
    (out / "tokenizer.json").write_text(json.dumps(described, ensure_ascii=False))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _needed(
    merges: list[tuple[str, str]], vocabulary: dict[str, int], ids: set[int]
) -> list[tuple[str, str]]:
    """The merges that lead to these ids, in their order."""
    names = {number: token for token, number in vocabulary.items()}
    made = {one + two: (one, two) for one, two in reversed(merges)}
    wanted: set[tuple[str, str]] = set()
    waiting = [names[number] for number in ids if number in names]
    while waiting:
        pair = made.get(waiting.pop())
        if pair and pair not in wanted:
            wanted.add(pair)
            waiting += pair
    return [pair for pair in merges if pair in wanted]


def _vocabulary(vocabulary: dict[str, int], kept: list[tuple[str, str]]) -> dict[str, int]:
    wanted = {one + two for one, two in kept} | {"<|endoftext|>"}
    return {name: id_ for name, id_ in vocabulary.items() if len(name) == 1 or name in wanted}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
