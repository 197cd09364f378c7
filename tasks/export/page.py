"""DEPLOY.md: how to put the bundle on PAI-EAS. In a module, so that it travels with a wheel."""

from __future__ import annotations

_PAGE = """\
# Deploy {{NAME}} on PAI-EAS

This folder holds `model/` (a Hugging Face folder), `service.json` (the service for EAS) and, unless
it was switched off, `proof.json`: the greedy tokens of `transformers serve` on `model/` beside
those of the Megatron checkpoint it came from. The proof ran on a CPU in float32. **Not run here:**
the upload, EAS itself, and the image `{{IMAGE}}`. Check that your account's registry reaches the
image, and that `{{INSTANCE_TYPE}}` is sold in your region.

1. Upload the model (the files are hard links; this copies their bytes):
   `ossutil cp -r model/ {{OSS_PATH}}`
2. If that is not your path, set `export.oss_path`, or edit `storage[0].oss.path` in `service.json`.
   vLLM itself only sees the folder where EAS mounts it, `/mnt/model`.
3. Create the service: `eascmd create service.json`, or paste the file in the console
   (PAI > Elastic Algorithm Service > Deploy > JSON deployment). EAS waits for `/health` on port
   8000.
4. Ask it, with the address and token that `eascmd desc {{NAME}}` shows:

   ```
   curl "$ADDRESS/v1/completions" -H "Authorization: $TOKEN" \\
     -H "Content-Type: application/json" -d '{"model": "{{NAME}}", "max_tokens": 16,
     "temperature": 0, "prompt": "The capital of France is"}'
   ```

   vLLM computes in half precision, so its tokens may leave those of `proof.json` at a near tie.

# 部署到 PAI-EAS

`model/` 是 Hugging Face 模型目录，`service.json` 是 EAS 服务描述，`proof.json` 是本机
`transformers serve`（CPU、float32）与 Megatron 检查点的贪心解码对照。上传、EAS 部署以及镜像
`{{IMAGE}}` 均**未在此处运行过**。

1. 上传模型：`ossutil cp -r model/ {{OSS_PATH}}`
2. 路径不同时，修改 `export.oss_path`，或直接改 `service.json` 里的 `storage[0].oss.path`。
3. 创建服务：`eascmd create service.json`，或在控制台选择 JSON 独立部署；端口 8000，
   健康检查 `/health`。
4. 用 `eascmd desc {{NAME}}` 给出的地址和 Token 调用 `/v1/completions`。
"""


def fill(**words: str) -> str:
    """The page with each `{{WORD}}` replaced."""
    page = _PAGE
    for word, value in words.items():
        page = page.replace(f"{{{{{word}}}}}", value)
    return page
