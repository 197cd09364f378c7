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
        keys = {
            name: json.dumps([family.model_type, family.megatron_config(config), config])
            for name, (family, config) in models.items()
        }
        if new := {name: models[name] for name, key in keys.items() if key not in known}:
            known.update((keys[name], built) for name, built in build(new, stop).items())
        return {name: known[key] for name, key in keys.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "build", once)
        yield
