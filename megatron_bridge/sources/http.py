"""Bytes from a web server, by ranges, through fsspec's HTTP client.

fsspec's own reads take an answer of any length for the range they asked for, which can be a whole
file in memory; here no more is read than was asked for, into memory that is there already.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.address import Address, malformed
from megatron_bridge.sources.transport import (
    Interrupted,
    Refused,
    changed,
    missing,
    shorter,
    too_large,
    unusable,
)

if TYPE_CHECKING:
    import aiohttp

_CONNECT, _SILENCE = 30, 60
"""Seconds to wait for a connection, and for its next byte."""
_TRANSIENT = {408, 425, 429, *range(500, 600)}


class Http:
    """A file on a web server."""

    def __init__(self, address: Address) -> None:
        import fsspec
        import yarl

        self.shown = address.shown
        # One that holds signs of encoding is sent as it stands: a signature covers every letter.
        is_encoded = "%" in address.url or "?" in address.url
        try:
            self._url = yarl.URL(address.url, encoded=is_encoded)
            # As the socket does: it refuses a part of a name that is empty or too long.
            (self._url.raw_host or "").encode("idna")
        except ValueError:
            raise malformed() from None
        self._fs = fsspec.filesystem(address.scheme)
        self._size: int | None = None
        self._state: str | None = None

    def begin(self, length: int) -> tuple[int, str, bytes]:
        """Return the file's size and state, and its first bytes, at most `length`.

        Raises:
            Absent: no such file.
            InputError: the server gives no ranges, or refuses.
            Interrupted: it may work another time.
        """
        found: tuple[int, str, bytes] = self._run(self._begin, length)
        self._size, self._state, _ = found
        return found

    def fill(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset`; errors as `begin`'s."""
        self._run(self._fill, offset, target)

    def whole(self, limit: int) -> bytes:
        """Return all of a file of at most `limit` bytes; errors as `begin`'s."""
        found: tuple[str, bytes] = self._run(self._whole, limit)
        return found[1]

    def look(self) -> tuple[int | None, str, bool]:
        """Return size and ETag, else date, as far as they are told, and whether it gives ranges.

        Raises:
            Absent: no such file, or none that is given.
            Interrupted: it may work another time.
        """
        found: tuple[int | None, str, bool] = self._run(self._look)
        return found

    def pour(self, write: Callable[[bytes], object]) -> None:
        """Hand over all of the file, from its beginning, as it arrives; errors as `begin`'s."""
        self._run(self._pour, write)

    def page(self, limit: int) -> str | None:
        """Return a web page of at most `limit` bytes; None where the answer is something else."""
        try:
            kind, text = self._run(self._whole, limit, "text/html")
        except InputError:
            return None
        return text.decode(errors="replace") if kind == "text/html" else None

    def _run(self, function: Any, *given: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._fs.loop, function, *given)

    async def _begin(self, length: int) -> tuple[int, str, bytes]:
        async with await self._get({"Range": f"bytes=0-{length - 1}"}) as answer:
            first, last, size = _content_range(answer)
            if answer.status == 416 and size == 0:
                return 0, _state_of(answer), b""
            if answer.status != 206 or size is None or (first, last) != (0, min(length, size) - 1):
                answer.close()
                raise unusable(self.shown, f"the status {answer.status}")
            data = bytearray(min(length, size))
            await self._stream(answer, memoryview(data))
            return size, _state_of(answer), bytes(data)

    async def _look(self) -> tuple[int | None, str, bool]:
        async with await self._get({"Range": "bytes=0-0"}) as answer:
            answer.close()
            state = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            if answer.status == 200:
                return answer.content_length, state, False
            return _content_range(answer)[2], state, True

    async def _pour(self, write: Callable[[bytes], object]) -> None:
        async with await self._get({}) as answer:
            if answer.status != 200:
                raise unusable(self.shown, f"the status {answer.status}")
            try:
                async for chunk in answer.content.iter_any():
                    write(chunk)
            except _failures() as error:
                raise Interrupted(type(error).__name__) from None

    async def _fill(self, offset: int, target: memoryview) -> None:
        last = offset + len(target) - 1
        async with await self._get({"Range": f"bytes={offset}-{last}"}) as answer:
            found = _content_range(answer)
            if answer.status == 416:
                raise shorter(self.shown, offset, len(target))
            if answer.status != 206 or found[:2] != (offset, last):
                answer.close()
                raise unusable(self.shown, f"the status {answer.status} and bytes {found[:2]}")
            is_same = self._size in (None, found[2] or self._size)
            if not is_same or self._state not in (None, _state_of(answer)):
                answer.close()
                raise changed(self.shown)
            await self._stream(answer, target)

    async def _whole(self, limit: int, accepted: str = "*/*") -> tuple[str, bytes]:
        async with await self._get({"Accept": accepted}) as answer:
            size = answer.content_length or 0
            if answer.status != 200:
                raise unusable(self.shown, f"the status {answer.status}")
            data = bytearray()
            try:
                while size <= limit and (chunk := await answer.content.readany()):
                    data += chunk
                    size = max(size, len(data))
            except _failures() as error:
                raise Interrupted(type(error).__name__) from None
            if size > limit:
                answer.close()
                raise too_large(self.shown, limit, size)
            return answer.content_type, bytes(data)

    async def _get(self, headers: dict[str, str]) -> aiohttp.ClientResponse:
        import aiohttp

        session = await self._fs.set_session()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
        headers = {"Accept-Encoding": "identity", **headers}
        try:
            answer: aiohttp.ClientResponse = await session.get(
                self._url, headers=headers, timeout=timeout
            )
        # Errors of the client name the URL, which may hold secrets: only their kind is told.
        except (aiohttp.InvalidURL, aiohttp.TooManyRedirects) as error:
            raise Refused(self.shown, type(error).__name__) from None
        except _failures() as error:
            raise Interrupted(type(error).__name__) from None
        self._check(answer)
        return answer

    def _check(self, answer: aiohttp.ClientResponse) -> None:
        status = answer.status
        packed = answer.headers.get("Content-Encoding", "identity") != "identity"
        if status in (200, 206, 416) and not packed:
            return
        answer.close()
        if status in _TRANSIENT:
            raise Interrupted(f"the status {status}")
        if status in (404, 410):
            raise missing(self.shown)
        raise Refused(self.shown, "a compressed answer" if packed else f"the status {status}")

    async def _stream(self, answer: aiohttp.ClientResponse, target: memoryview) -> None:
        done = 0
        try:
            async for chunk in answer.content.iter_any():
                if done + len(chunk) > len(target):
                    answer.close()
                    raise unusable(self.shown, "more bytes than were asked for")
                target[done : done + len(chunk)] = chunk
                done += len(chunk)
        except _failures() as error:
            raise Interrupted(type(error).__name__, done) from None
        if done < len(target):
            raise Interrupted("the answer ended early", done)


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    import aiohttp

    return aiohttp.ClientError, TimeoutError, ConnectionError


def _content_range(answer: aiohttp.ClientResponse) -> tuple[int | None, int | None, int | None]:
    """First and last byte, and the size of the file, as far as the answer tells."""
    text = answer.headers.get("Content-Range", "")
    if not (found := re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", text.strip())):
        return None, None, None
    first, last, size = (int(n) if n and n != "*" else None for n in found.groups())
    return first, last, size


def _state_of(answer: aiohttp.ClientResponse) -> str:
    return " ".join(answer.headers.get(name, "") for name in ("ETag", "Last-Modified")).strip()
