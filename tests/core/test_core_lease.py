"""A lease is freed when its holder is dead, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tasks.core import lease as module
from tasks.core.errors import RetryableError
from tasks.core.lease import Lease
from tasks.core.storage.local import LocalStorage

KEY = "stage/label/0/lease.json"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def leave_behind(storage: LocalStorage, **changes: object) -> None:
    """A lease as another process would have left it."""
    content = module._myself() | {"heartbeat": 0.1, "token": "other"} | changes
    assert storage.create(KEY, json.dumps(content).encode())


def seconds_to_take(storage: LocalStorage) -> float:
    started = time.monotonic()
    with Lease(storage, KEY) as lease:
        lease.confirm()
    assert storage.read(KEY) is None
    return time.monotonic() - started


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_dead_pid_frees_at_once(storage: LocalStorage) -> None:
    leave_behind(storage, pid=dead_pid(), heartbeat=1000)
    assert seconds_to_take(storage) < 1


def test_pid_of_another_process_by_now_frees_at_once(storage: LocalStorage) -> None:
    leave_behind(storage, started="1", heartbeat=1000)
    assert seconds_to_take(storage) < 1


def test_zombie_frees_at_once(storage: LocalStorage) -> None:
    process = subprocess.Popen(["sleep", "300"])
    leave_behind(storage, pid=process.pid, started=module._start_time(process.pid), heartbeat=1000)
    process.kill()
    time.sleep(0.1)
    try:
        assert seconds_to_take(storage) < 1
    finally:
        process.wait()


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "x"}, {"pid_namespace": "x"}])
def test_other_host_frees_after_three_heartbeats(
    storage: LocalStorage, change: dict[str, str]
) -> None:
    leave_behind(storage, pid=dead_pid(), **change)
    assert 0.3 <= seconds_to_take(storage) < 3


def test_other_host_that_beats_keeps_it(storage: LocalStorage) -> None:
    leave_behind(storage, host="elsewhere", heartbeat=0.3)
    taken = threading.Thread(target=seconds_to_take, args=(storage,), daemon=True)
    taken.start()
    for _ in range(15):
        time.sleep(0.1)
        storage.touch(KEY)
    assert b"elsewhere" in (storage.read(KEY) or b"")
    assert taken.is_alive()
    taken.join(10)
    assert not taken.is_alive()


def test_holder_beats(storage: LocalStorage) -> None:
    with Lease(storage, KEY, heartbeat=0.05):
        before = storage.stamp(KEY)
        time.sleep(0.3)
        assert storage.stamp(KEY) != before


def test_living_holder_here_keeps_it(storage: LocalStorage) -> None:
    order: list[str] = []
    with Lease(storage, KEY, heartbeat=0.01):
        waiter = threading.Thread(
            target=lambda: (seconds_to_take(storage), order.append("waiter")), daemon=True
        )
        waiter.start()
        time.sleep(0.8)
        order.append("holder")
    waiter.join(10)
    assert order == ["holder", "waiter"]


def test_lost_or_revoked_lease_does_not_seal(storage: LocalStorage) -> None:
    with Lease(storage, KEY) as lease:
        storage.put(KEY, b"another holder")
        with pytest.raises(RetryableError, match="another holder"):
            lease.confirm()
    assert storage.read(KEY) == b"another holder"
    storage.remove(KEY)
    with Lease(storage, KEY) as lease:
        lease.revoke()
        with pytest.raises(RetryableError, match="signal"):
            lease.confirm()


def test_only_one_of_many_holds_it(storage: LocalStorage) -> None:
    leave_behind(storage, pid=dead_pid())
    inside, most = [0], [0]

    def work() -> None:
        with Lease(storage, KEY):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1]
    assert not os.path.exists(storage.root / KEY)
