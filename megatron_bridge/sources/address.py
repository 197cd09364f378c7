"""Where a remote model lies, and what of it may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from megatron_bridge.errors import ConfigError

HIDDEN = "***"


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
        return self.scheme in ("http", "https")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.split()[1]

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
        ConfigError: a chain of URLs.
    """
    text = str(given)
    if isinstance(given, Path) or "://" not in text:
        return Path(given)
    parts = urlsplit(text)
    if parts.scheme in ("file", "local"):
        return Path(unquote(parts.netloc + parts.path))
    if "::" in text:
        raise ConfigError(
            "A chain of URLs is not read",
            where="the model's URL",
            expected="protocol://place/folder",
            got="an address with ::",
            fix="give the folder's own URL",
        )
    return Address(text)
