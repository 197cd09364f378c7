"""The bundle for Alibaba Cloud PAI-EAS: model folder, service description, how to deploy them.

Fields of service.json: https://help.aliyun.com/zh/pai/user-guide/parameters-of-model-services
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.store import link_or_copy
from tasks.export import page

MOUNT = "/mnt/model"
PORT = 8000
"""8080 and 9090 are reserved by EAS."""


@dataclass(frozen=True)
class Service:
    """What the service description is made of; see `ExportConfig`."""

    name: str
    image: str
    instance_type: str
    instances: int
    oss_path: str


def describe(service: Service) -> dict[str, Any]:
    """The content of service.json: vLLM on the mounted folder.

    The engine gets the mount path: only EAS itself reads `oss://`.
    """
    command = f"vllm serve {MOUNT} --host 0.0.0.0 --port {PORT} --served-model-name {service.name}"
    return {
        "metadata": {"name": service.name, "instance": service.instances},
        "cloud": {"computing": {"instances": [{"type": service.instance_type}]}},
        "containers": [
            {
                "image": service.image,
                "script": command,
                "port": PORT,
                "startup_check": {
                    "http_get": {"path": "/health", "port": PORT},
                    "initial_delay_seconds": 10,
                    "period_seconds": 10,
                    "failure_threshold": 60,
                },
            }
        ],
        "storage": [
            {"mount_path": MOUNT, "oss": {"path": service.oss_path, "readOnly": True}},
        ],
    }


def write(model: Path, service: Service, out: Path) -> None:
    """Write model/ (hard links), service.json and DEPLOY.md.

    Args:
        model: the exported Hugging Face folder; its files all lie in it directly.
        service: the description.
        out: the bundle's folder.
    """
    (out / "model").mkdir()
    for file in sorted(path for path in model.iterdir() if path.is_file()):
        link_or_copy(file, out / "model" / file.name)
    text = json.dumps(describe(service), indent=2, ensure_ascii=False) + "\n"
    (out / "service.json").write_text(text, encoding="utf-8")
    text = page.fill(
        NAME=service.name,
        OSS_PATH=service.oss_path,
        IMAGE=service.image,
        INSTANCE_TYPE=service.instance_type,
    )
    (out / "DEPLOY.md").write_text(text, encoding="utf-8")
