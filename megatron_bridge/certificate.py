"""`certificate.json`: what was compared between a Hugging Face folder and a checkpoint."""

from __future__ import annotations

CERTIFICATE = "certificate.json"
