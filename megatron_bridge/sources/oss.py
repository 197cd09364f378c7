"""Alibaba Cloud OSS, where ossfs leaves something out: credentials, and listings.

ossfs's listings hold no ETag, take a hundred files a request, and are empty where one may not look.
"""

from __future__ import annotations

import os
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.sources.address import Address
from megatron_bridge.sources.transport import Interrupted, Refused, missing

_NAMES = {
    "key": "OSS_ACCESS_KEY_ID",
    "secret": "OSS_ACCESS_KEY_SECRET",
    "endpoint": "OSS_ENDPOINT",
}
_AT_A_TIME = 1000


def credentials() -> dict[str, str]:
    """Return `key`, `secret` and `endpoint` from the environment.

    Raises:
        ConfigError: one is missing.
    """
    found = {field: os.environ.get(name, "") for field, name in _NAMES.items()}
    if lacking := [_NAMES[field] for field, value in found.items() if not value]:
        raise ConfigError(
            "Access to OSS is not set up",
            where="the environment",
            expected=", ".join(_NAMES.values()),
            got=f"no {', '.join(lacking)}",
            fix="set them; no other place is searched for credentials",
        )
    return found


def found(address: Address) -> dict[str, tuple[int, str]]:
    """Return size and ETag of the files below a folder by their paths in it, or of a file by "".

    Raises:
        ConfigError: the package is not installed, or the credentials are missing.
        Absent: no such bucket, or none that one may list.
        Interrupted: it may work another time.
    """
    given = credentials()
    try:
        import oss2
    except ImportError:
        raise lacking() from None
    # A name may hold what would end the path of a web address.
    place, _, key = address.url.partition("://")[2].partition("/")
    key = key.strip("/")
    folder = f"{key}/" if key else ""
    try:
        auth = oss2.Auth(given["key"], given["secret"])
        bucket = oss2.Bucket(auth, given["endpoint"], place)
        listing = oss2.ObjectIterator(bucket, prefix=folder, max_keys=_AT_A_TIME)
        files = {entry.key.removeprefix(folder): _told(entry.size, entry.etag) for entry in listing}
        # What is made in a console to stand for a folder.
        files.pop("", None)
        if not files and key:
            head = bucket.get_object_meta(key)
            files[""] = _told(head.content_length, head.etag)
        return files
    except (oss2.exceptions.NotFound, oss2.exceptions.ClientError):
        raise missing(address.shown) from None
    except oss2.exceptions.OssError as error:
        if error.status == 403:
            raise Refused(address.shown, str(error.code)) from None
        raise Interrupted(type(error).__name__) from None


def lacking() -> ConfigError:
    """What is told where the package for OSS is not installed."""
    return ConfigError(
        "There is no reader for this kind of URL",
        where="oss://",
        expected="the package `ossfs`",
        got="not installed",
        fix="pip install 'megaline[oss]'",
    )


def _told(size: Any, etag: Any) -> tuple[int, str]:
    return int(size or 0), str(etag or "").strip('"')
