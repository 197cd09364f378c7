"""gigatoken: some seventy times as fast as `tokenizers` on one core.

It brings its own splitting of texts, Unicode tables included, so it is used only through `choose`.
Its batches come as awkward arrays, whose import takes 0.3 s and 50 MiB a process; one text at a
time they are plain numpy, and as fast from 2 kB a text on.
"""

from __future__ import annotations

import json

from tasks.tokens.encoders import Spec, Unsuited, unsuited
from tasks.tokens.encoders.routing import Routed, any_of


def load(spec: Spec) -> Routed:
    """Read a tokenizer.json or a SentencePiece model.

    Raises:
        Unsuited: the package is missing, or it does not know this kind of tokenizer.
    """
    try:
        import gigatoken
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json
    except ImportError as error:
        raise Unsuited("the package gigatoken is not installed") from error
    data, apart = spec.file.read_bytes(), None
    with unsuited("gigatoken cannot read it"):
        if spec.own == "sentencepiece":
            converted = sentencepiece_to_tokenizer_json(data)
            # To SentencePiece a control piece in a text is text, and no space goes after a piece
            # that the user defined.
            apart = any_of(token["content"] for token in json.loads(converted)["added_tokens"])
            data = converted.encode()
        tokenizer = gigatoken.Tokenizer.from_json(data)
    return Routed("gigatoken", tokenizer.backend.encode, spec, apart)
