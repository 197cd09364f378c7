"""What all tests share: a model that several of them convert is built, for its proof, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_build_a_model() -> Iterator[None]:
    """Every conversion builds its model on a rank of its own, which takes seconds to start."""
    from megatron_bridge import architecture

    build, known = architecture.build, {}

    def once(models: Any, stop: Any = None) -> Any:
        found = {}
        for name, (family, config) in models.items():
            key = json.dumps([family.model_type, family.megatron_config(config), config])
            if key not in known:
                known[key] = build({name: (family, config)}, stop)[name]
            found[name] = known[key]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "build", once)
        yield
