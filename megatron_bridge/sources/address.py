"""Where a remote model lies, and what of it may be shown."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from megatron_bridge.errors import ConfigError

HIDDEN = "***"
_WEB = {"http", "https"}
_REVISIONS = {"revision", "version", "versionid", "generation"}


@dataclass(frozen=True)
class Address:
    """A URL of a folder or file. Only `shown` may be told: a URL can hold secrets."""

    url: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The URL without its user, password and query."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")
        netloc = f"{HIDDEN}@{host[2]}" if host[1] else parts.netloc
        return urlunsplit((parts.scheme, netloc, parts.path, HIDDEN if parts.query else "", ""))

    @property
    def scheme(self) -> str:
        """The protocol, in small letters."""
        return urlsplit(self.url).scheme

    @property
    def is_http(self) -> bool:
        """True where a server is asked, which lists its files only if it likes to."""
        return self.scheme in _WEB

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.split()[1]

    @property
    def revision(self) -> str:
        """A digest of the parameters that choose one of several models; empty without any."""
        # Not of the whole query: a signature is another one at each signing, and a run that was
        # interrupted must go on with a fresh one.
        named = [(name.lower(), value) for name, value in parse_qsl(urlsplit(self.url).query)]
        chosen = sorted(pair for pair in named if pair[0] in _REVISIONS)
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest() if chosen else ""

    def join(self, name: str) -> Address:
        """Return the address of a file of this folder; a query, such as a signature, is kept."""
        parts = urlsplit(self.url)
        path = f"{parts.path.rstrip('/')}/{quote(name) if self.is_http else name}"
        return Address(urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")))

    def split(self) -> tuple[Address, str]:
        """Return the address of the folder that this file is in, and the file's name."""
        parts = urlsplit(self.url)
        folder, _, name = parts.path.rpartition("/")
        above = Address(urlunsplit((parts.scheme, parts.netloc, folder, parts.query, "")))
        return above, unquote(name) if self.is_http else name


def parse(given: Path | str) -> Path | Address:
    """Return what a user names: a path on this disk, `file://` included, or the address of a URL.

    A `Path` is a path; only text can be a URL, whose slashes a `Path` would merge.

    Raises:
        ConfigError: a chain of URLs, or one that is malformed.
    """
    text = str(given)
    if isinstance(given, Path) or "://" not in text:
        return Path(given)
    try:
        parts = urlsplit(text)
        # Other filesystems have places of other forms. A port is read when it is asked for.
        if parts.scheme in _WEB and (parts.port == 0 or not parts.hostname):
            raise malformed()
    except ValueError:
        # Its text quotes the URL.
        raise malformed() from None
    if parts.scheme in ("file", "local"):
        return Path(unquote(parts.netloc + parts.path))
    # The name of a server can be an address of IPv6, such as [::1].
    if "::" in text and parts.scheme not in _WEB:
        raise ConfigError(
            "A chain of URLs is not read",
            where="the model's URL",
            expected="protocol://place/folder",
            got="an address with ::",
            fix="give the folder's own URL",
        )
    return Address(text)


def malformed() -> ConfigError:
    """What is told of a URL that cannot be shown: nobody knows which part of it is a password."""
    return ConfigError(
        "A URL cannot be read",
        where="the model's URL",
        expected="protocol://place/folder, with a port from 1 to 65535 if any",
        got="no place or a port that is none",
        fix="correct what stands between :// and the next slash",
    )
