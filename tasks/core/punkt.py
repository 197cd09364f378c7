"""nltk's sentence splitter, Punkt, with the models that come as a package."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any


@cache
def load(language: str) -> Any:
    """nltk's `PunktSentenceTokenizer` for a language by its English name; nltk's are a download."""
    import punkt

    nltk = module("nltk.tokenize.punkt")
    model = punkt.load_model(language)
    parameters = nltk.PunktParameters()
    parameters.abbrev_types = set(model.abbrev_types)
    parameters.collocations = set(model.collocations)
    parameters.sent_starters = set(model.sent_starters)
    parameters.ortho_context.update(model.ortho_context)
    return nltk.PunktSentenceTokenizer(parameters)


@cache
def module(name: str) -> Any:
    """A module of nltk, without what its package would bring along to no use here.

    Where scikit-learn is installed, `import nltk` takes 2 s and 176 MB for it, in every worker.
    """
    hidden = [other for other in ("sklearn", "scipy", "pandas") if other not in sys.modules]
    # None makes an import fail, which the type of `sys.modules` leaves out.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    finally:
        for other in hidden:
            del sys.modules[other]
