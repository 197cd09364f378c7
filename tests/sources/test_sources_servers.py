"""Servers that misbehave, and folders that are not what they say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file

from megatron_bridge import __main__, hf
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import ConfigError, InputError, RetryableError
from megatron_bridge.proof import TENSORS, Proof
from megatron_bridge.sources import filesystem, remote, remote_folder, source
from megatron_bridge.sources.address import Address, parse
from megatron_bridge.sources.remote import RemoteFile

SHARD = "model-0.safetensors"


def opened(url: str) -> list[str]:
    with source.opened(url) as found, hf.Weights(found) as weights:
        return weights.names


def test_a_server_without_ranges_is_refused_and_its_file_not_swallowed(served: Any) -> None:
    served.ignores_ranges = True
    os.truncate(served.folder / SHARD, 2**26)
    with pytest.raises(InputError, match="does not give ranges"):
        opened(served.url)
    assert served.sent[SHARD] < 2**24


@pytest.mark.parametrize("fault", ["shifted", "one_more", "ignores_ranges"])
def test_another_range_than_the_one_asked_for_is_never_taken(served: Any, fault: str) -> None:
    os.truncate(served.folder / SHARD, 2**26)
    file = RemoteFile(Address(f"{served.url}/{SHARD}"))
    setattr(served, fault, True)
    with pytest.raises(RetryableError, match=r"no range but .* 4 times in a row"):
        file.read(100, 50)
    assert served.sent[SHARD] < 2**26


def test_an_answer_without_its_range_may_pass(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RemoteFile(Address(f"{served.url}/{SHARD}"))
    served.ignores_ranges = True
    mend = lambda _: setattr(served, "ignores_ranges", False)  # noqa: E731
    monkeypatch.setattr(remote.time, "sleep", mend)
    assert file.read(100, 50) == (served.folder / SHARD).read_bytes()[100:150]


def test_what_passes_is_waited_out(served: Any) -> None:
    served.broken_every, served.busy_every = 3, 5
    data = (served.folder / SHARD).read_bytes()
    file = RemoteFile(Address(f"{served.url}/{SHARD}"))
    assert b"".join(file.read(n, 9000) for n in range(0, 180_000, 9000)) == data[:180_000]
    # What had arrived when a connection broke is kept.
    assert file.fetched == served.total == 180_000


def test_what_does_not_pass_may_be_run_again(served: Any) -> None:
    served.busy_every = 1
    with pytest.raises(RetryableError, match="same command again"):
        opened(served.url)
    assert sum(served.asked.values()) == 4


def test_nobody_there_may_be_run_again(served: Any) -> None:
    with pytest.raises(RetryableError, match="failed"):
        opened("http://127.0.0.1:9")  # the port of the discard service, which nobody runs


def test_a_folder_without_config_says_what_was_looked_for(served: Any) -> None:
    with pytest.raises(InputError, match=r"looked for .*config.json.*safetensors.index.json"):
        opened(f"{served.url}/nothing")


def test_a_missing_shard_is_named(served: Any) -> None:
    (served.folder / SHARD).unlink()
    with pytest.raises(InputError, match=SHARD):
        opened(served.url)


def test_a_truncated_shard_is_refused(served: Any) -> None:
    os.truncate(served.folder / SHARD, 20_000)
    with pytest.raises(InputError, match="whole safetensors file"):
        opened(served.url)


def test_a_listing_shows_files_of_any_name(served: Any) -> None:
    (served.folder / "modeling_own.py").write_text("x = 1")
    (served.folder / "training_args.bin").write_text("no weights")
    served.listing = True
    with source.opened(served.url) as found:
        assert (found.files / "modeling_own.py").read_text() == "x = 1"
    assert not served.sent["training_args.bin"]


def test_without_a_listing_config_names_the_modules(served: Any) -> None:
    config = json.loads((served.folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_own.Model"}
    (served.folder / "config.json").write_text(json.dumps(config))
    (served.folder / "modeling_own.py").write_text("x = 1")
    with source.opened(served.url) as found:
        assert (found.files / "modeling_own.py").is_file()


def test_a_name_that_leads_elsewhere_is_refused(served: Any) -> None:
    index = served.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(InputError, match="leads out"):
        opened(served.url)


def test_absurd_files_beside_the_weights_are_refused(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_folder, "LIMIT", 2**20)
    (served.folder / "README.md").touch()
    os.truncate(served.folder / "README.md", 2**26)
    with pytest.raises(InputError, match="too large"):
        opened(served.url)
    assert served.sent["README.md"] < 2**24


def test_both_models_cannot_be_run_from_afar(served: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on this disk"):
        import_hf(served.url, tmp_path / "out", proof=Proof(logits=True))
    assert served.total < 50_000


@pytest.mark.parametrize(
    "url",
    ["http://user:sekret@[abc/x", "http://h:99999/sekret", "https://host:sekret/m",
     "http://user:sekret@/x", "http://user:sekret@h\u2100x/m", "http://sekret@a\\b/x",
     "http://sekret@a..b/x", "memory://user:sekret@[abc/x"],
)  # fmt: skip
def test_a_malformed_url_is_a_sentence_without_its_secrets(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (["import", url, str(tmp_path / "out")], ["inspect", url]):
        assert __main__.main(command) == 2
        told = "".join(capfd.readouterr())
        assert "A URL cannot be read" in told
        assert "sekret" not in told


def test_a_url_is_no_path(served: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that is longer than any path may be, whose end is secret."""
    url, out = f"{served.url}?Signature={'s3cr3t' * 1000}", str(tmp_path / "out")
    served.refuses = True
    for command in (["import", url, out], ["inspect", url]):
        assert __main__.main(command) == 2
        told = "".join(capfd.readouterr())
        assert "does not name a model folder" in told
        assert "s3cr3t" not in told


def test_secrets_of_a_url_are_told_nowhere(
    served: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = served.url.replace("//", "//anna:geheim@") + "?Signature=s3cr3t"
    (tmp_path / "ids.json").write_text("[[1, 2]]")
    command = ["import", url, str(tmp_path / "out" / "ckpt")]
    assert __main__.main([*command, "--tokens", str(tmp_path / "ids.json")]) == 2
    served.busy_every = 1
    assert __main__.main(command) == 3
    served.busy_every = 0
    shard = served.folder / SHARD
    whole = shard.read_bytes()
    shard.unlink()
    assert __main__.main(command) == 2
    shard.write_bytes(whole)
    assert __main__.main(command) == 0
    assert __main__.main(["verify", url, command[2]]) == 0
    texts = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    texts += [text.encode() for text in capfd.readouterr()]
    assert any(b"***@127.0.0.1" in text for text in texts)
    assert not any(secret in t for t in texts for secret in (b"geheim", b"s3cr3t", b"anna"))


def test_any_filesystem_and_torch_files(served: Any, tmp_path: Path) -> None:
    tensors = load_file(served.folder / SHARD) | load_file(served.folder / "model-1.safetensors")
    shutil.rmtree(served.folder / "hf", ignore_errors=True)
    for path in served.folder.glob("model*"):
        path.unlink()
    torch.save(tensors, served.folder / "pytorch_model.bin")
    fs = fsspec.filesystem("memory")
    for path in served.folder.iterdir():
        fs.pipe(f"/models/toy/{path.name}", path.read_bytes())
    local = import_hf(served.folder, tmp_path / "local", proof=TENSORS)
    for url in ("memory://models/toy", served.url, f"file://{served.folder}"):
        found = import_hf(url, tmp_path / url[:4], proof=TENSORS)
        assert found["inverse"] == local["inverse"]
        assert ("source" in found) == (not url.startswith("file"))
    assert served.total <= 1.02 * sum(path.stat().st_size for path in served.folder.iterdir())


def test_oss_wants_its_credentials_from_three_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="no OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET"):
        opened("oss://bucket/model")


def test_one_byte_more_is_cut_off_for_oss_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy:
        def cat_file(self, path: str, start: int, end: int) -> bytes:
            return bytes(range(start, end + 1))

    monkeypatch.setattr(filesystem, "connect", lambda address: (Greedy(), "x"))
    target = bytearray(4)
    filesystem.File(Address("oss://bucket/x")).fill(3, memoryview(target))
    assert target == bytes([3, 4, 5, 6])
    with pytest.raises(InputError, match="ranges"):
        filesystem.File(Address("s3://bucket/x")).fill(3, memoryview(target))


def test_what_a_user_names() -> None:
    assert parse("models/x") == Path("models/x")
    assert parse("file:///models/a%20b") == Path("/models/a b")
    address = parse("https://u:p@host:8/m/?sig=1")
    assert isinstance(address, Address)
    assert address.join("a b").url == "https://u:p@host:8/m/a%20b?sig=1"
    assert address.shown == "https://***@host:8/m/?***"
    assert "sig" not in repr(address)
    assert parse("http://[::1]:80/m") == Address("http://[::1]:80/m")
    with pytest.raises(ConfigError, match="chain"):
        parse("simplecache::https://host/m")
