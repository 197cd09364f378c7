"""The proof: the served folder's greedy tokens are those of the trained Megatron checkpoint.

The server answers with text. Ids are read back from it where each piece it streams can be one token
only. Elsewhere (bytes that are no character by themselves, an end-of-sequence) the pieces and the
number of ids are compared with what the same streaming decoder makes of Megatron's ids. The proof
says which of the two it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from megatron_bridge import runs
from tasks.export import serve


def compare(
    folder: Path,
    checkpoint: Path,
    prompts: Sequence[str],
    max_tokens: int,
    log: Path,
    progress: Callable[..., None],
) -> list[dict[str, Any]]:
    """Serve the folder, and generate from the checkpoint, for each prompt.

    Args:
        folder: the exported Hugging Face folder.
        checkpoint: the trained checkpoint it came from; nothing of the folder is read for it.
        prompts: texts.
        max_tokens: new tokens, at most; both sides end at an end-of-sequence token.
        log: for the server's output.
        progress: the stage's.

    Returns:
        Per prompt: prompt, prompt_tokens, served_text, megatron_text, served_tokens (None where
        they cannot be read back), megatron_tokens, compared ("ids" or "text"), tokens_equal.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    steps = 2
    progress(0, steps, unit="steps", note="Megatron generates")
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    ends = _end_of_sequence(folder)
    generated = [_until(new, ends) for new in runs.generate(checkpoint, ids, max_tokens)]
    progress(1, steps, unit="steps", note="transformers serve")
    with serve.server(folder, log) as url:
        answers = [serve.complete(url, folder, prompt, max_tokens, log) for prompt in prompts]
    progress(steps, steps, unit="steps")
    rows = zip(prompts, ids, answers, generated, strict=True)
    return [_row(tokenizer, *row) for row in rows]


def read_back(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int] | None:
    """The ids whose text the pieces are, or None where a piece can be none or several."""
    owners: dict[str, list[int]] = defaultdict(list)
    for number in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        owners[tokenizer.decode([number], skip_special_tokens=True)].append(number)
    found = [owners[piece] for piece in pieces]
    if any(len(numbers) != 1 for numbers in found):
        return None
    return [numbers[0] for numbers in found]


def stream(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The pieces of text that a streaming server makes of ids."""
    decoder = DecodeStream([], skip_special_tokens=True)
    return list(filter(None, (decoder.step(tokenizer, number) for number in ids)))


def _row(
    tokenizer: Tokenizer,
    prompt: str,
    prompt_ids: list[int],
    served: serve.Completion,
    megatron: list[int],
) -> dict[str, Any]:
    pieces = stream(tokenizer, megatron)
    served_ids = read_back(tokenizer, served.pieces)
    # An end-of-sequence token is counted, but has no text.
    known = served_ids is not None and len(served_ids) == served.completion_tokens
    equal = (
        served.prompt_tokens == len(prompt_ids)
        and served.completion_tokens == len(megatron)
        and served.pieces == pieces
        and (not known or served_ids == megatron)
    )
    return {
        "prompt": prompt,
        "prompt_tokens": prompt_ids,
        "served_text": served.text,
        "megatron_text": "".join(pieces),
        "served_tokens": served_ids if known else None,
        "served_token_count": served.completion_tokens,
        "megatron_tokens": megatron,
        "compared": "ids" if known else "text",
        "tokens_equal": equal,
    }


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first end-of-sequence, with it: where a server stops."""
    for place, number in enumerate(ids):
        if number in ends:
            return ids[: place + 1]
    return ids


def _end_of_sequence(folder: Path) -> set[int]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ends = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            if ends is not None:
                return {ends} if isinstance(ends, int) else set(ends)
    return set()
