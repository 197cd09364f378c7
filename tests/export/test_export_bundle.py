"""The EAS bundle, and what export refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.core.errors import ProofError
from tasks.core.stage import Context
from tasks.export.task import ExportConfig, export

HOLDS = {"holds": True, "proven": True, "architecture": {}}


def run(
    tmp_path: Path,
    passed: bool = True,
    evaluated: str = "abc",
    certificate: dict[str, bool] | None = HOLDS,
    proven: bool = True,
    **config: Any,
) -> Path:
    """Run the stage's function without the serving proof; returns the bundle."""
    model, out = tmp_path / "model", tmp_path / "out"
    for folder in (model, out):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    if certificate is not None:
        (model / "certificate.json").write_text(json.dumps(certificate))
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"passed": passed}))
    entry = SimpleNamespace(name="exported", fingerprint=evaluated)
    metrics = export(
        ExportConfig(proof=False, **config),
        Context(out, tmp_path, lambda *_, **__: None),
        exported=SimpleNamespace(folder=model, fingerprint="abc"),
        trained=SimpleNamespace(checkpoint=tmp_path),
        report=SimpleNamespace(report=report, record=SimpleNamespace(inputs=[entry])),
    )
    assert metrics["proof"] == "not asked for"
    assert metrics["proven"] is proven
    return out


def test_the_model_lies_in_the_bundle_without_a_second_copy(tmp_path: Path) -> None:
    bundle = run(tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (bundle / "model" / name).samefile(tmp_path / "model" / name)
    assert not (bundle / "proof.json").exists()


def test_the_service_follows_the_rules_of_eas(tmp_path: Path) -> None:
    bundle = run(
        tmp_path, service_name="wiki_lm", image="registry/vllm:1", instance_type="ecs.x",
        instances=2, oss_path="oss://bucket/a/b/",
    )  # fmt: skip
    service = json.loads((bundle / "service.json").read_text())
    assert service["metadata"] == {"name": "wiki_lm", "instance": 2}
    assert service["cloud"]["computing"]["instances"] == [{"type": "ecs.x"}]
    (container,) = service["containers"]
    (storage,) = service["storage"]
    assert container["image"] == "registry/vllm:1"
    assert container["port"] not in (8080, 9090)
    assert container["startup_check"]["http_get"]["port"] == container["port"]
    words = container["script"].split()
    assert words[:3] == ["vllm", "serve", storage["mount_path"]]
    assert words[words.index("--host") + 1] == "0.0.0.0"
    assert words[words.index("--port") + 1] == str(container["port"])
    assert "oss://" not in container["script"]
    assert storage["oss"] == {"path": "oss://bucket/a/b/", "readOnly": True}
    page = (bundle / "DEPLOY.md").read_text()
    assert "Not run here" in page
    assert "ossutil cp -r model/ oss://bucket/a/b/" in page
    assert "{{" not in page


@pytest.mark.parametrize(("passed", "evaluated"), [(False, "abc"), (True, "another")])
def test_only_what_the_evaluation_let_through_is_exported(
    tmp_path: Path, passed: bool, evaluated: str
) -> None:
    with pytest.raises(ProofError, match="did not let this model through"):
        run(tmp_path, passed, evaluated)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"service_name": "Wiki-LM"}, {"oss_path": "/mnt/data/"}, {"prompts": []}]
)
def test_what_eas_would_refuse_is_refused_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ExportConfig(**wrong)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (None, "has no certificate"),
        ({"holds": False}, "does not hold"),
        (HOLDS | {"proven": False}, "from a checkpoint without proof"),
        ({"holds": True, "proven": True}, "the tensors only"),
    ],
)
def test_a_model_that_is_not_proven_is_refused_unless_somebody_insists(
    tmp_path: Path, certificate: dict[str, Any] | None, words: str
) -> None:
    (tmp_path / "first").mkdir()
    with pytest.raises(ProofError, match=words) as caught:
        run(tmp_path / "first", certificate=certificate)
    assert "export.unproven=true" in str(caught.value)
    assert list((tmp_path / "first" / "out").iterdir()) == []
    (tmp_path / "second").mkdir()
    run(tmp_path / "second", certificate=certificate, unproven=True, proven=False)
