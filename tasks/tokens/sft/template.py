"""A model's chat template: rendered in transformers' sandbox, the same on every day."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import ConfigError, InputError
from tasks.tokens.sft.rows import Message

_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.+?)\1\s*\)""")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SAID = 200

SECONDS = 5.0
"""Processor time that one rendering may take; a hundred thousand messages take one."""

LONGEST = 1 << 26
"""Characters of a rendered conversation at most: memory must be bounded."""


class Refused(ValueError):
    """The template does not take a conversation; says why."""


class Rendered(NamedTuple):
    """A conversation as text, and the character spans of the template's `generation` blocks."""

    text: str
    blocks: list[tuple[int, int]]


@dataclass(frozen=True)
class Template:
    """A chat template and what it is given beside the messages; small, and safe to pickle.

    Attributes:
        plain: Jinja, for conversations without tools.
        with_tools: Jinja, for those with tools; mostly the same.
        special: names and values that templates use, such as `bos_token`.
        control: the special tokens. In a rendered text only the template writes them.
    """

    plain: str
    with_tools: str
    special: tuple[tuple[str, str], ...]
    control: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Of all that decides on the text."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, prompt: bool = False
    ) -> Rendered:
        """The conversation as text.

        Args:
            messages: see `rows.Conversation`.
            tools: JSON schemas.
            prompt: add what begins an answer (`add_generation_prompt`).

        Raises:
            Refused: the template raised an error, or wrote more than anyone can take.
            InputError: it does not come to an end.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        source = self.with_tools if tools else self.plain
        try:
            with _bounded():
                texts, blocks = render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=source,
                    return_assistant_tokens_mask=_has_blocks(source),
                    add_generation_prompt=prompt,
                    **dict(self.special),
                )
        except InputError:
            raise
        # Templates are strangers' code: they raise what they like.
        except Exception as error:
            said = " ".join(str(error).split())[:_SAID]
            raise Refused(f"the template refuses it: {said or type(error).__name__}") from error
        if len(texts[0]) > LONGEST:
            raise Refused(f"the template writes more than {LONGEST:,} characters")
        return Rendered(texts[0], blocks[0] if blocks else [])

    @functools.cached_property
    def control_token(self) -> re.Pattern[str]:
        """Matches one special token; never, where there are none."""
        longest_first = sorted(self.control, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def load(folder: Path, date: datetime.date | None = None) -> Template:
    """The chat template of a model folder.

    Args:
        folder: the model's.
        date: what the template shall write where it asks for today's.

    Raises:
        InputError: no tokenizer there, or none with a chat template.
        ConfigError: the template writes today's date, and none was given.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        plain = tokenizer.get_chat_template()
        with_tools = tokenizer.get_chat_template(tools=[{}])
    except (ValueError, OSError) as error:
        raise InputError(
            "The model's chat template cannot be loaded", where=folder,
            expected="a tokenizer with a chat_template", got=" ".join(str(error).split()[:40]),
            fix="take the model's instruct variant, or add chat_template.jinja to the folder",
        ) from error  # fmt: skip
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    control = {
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    } | set(special.values())
    return Template(
        _dated(plain, date, folder), _dated(with_tools, date, folder),
        tuple(sorted(special.items())), tuple(sorted(filter(str.strip, control))),
    )  # fmt: skip


@contextmanager
def _bounded() -> Iterator[None]:
    """Ends a stranger's loop, where signals can: in a process's main thread."""

    def stop(*_: object) -> None:
        raise InputError(
            "The chat template does not come to an end", where="the model's chat template",
            expected=f"a conversation's text after {SECONDS:g} s of processor time at most",
            got="none", fix="take the template that the model was published with",
        )  # fmt: skip

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    # More than once: what is raised while Python cleans up is lost.
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@functools.cache
def _has_blocks(source: str) -> bool:
    return bool(_GENERATION.search(source))


def _dated(source: str, date: datetime.date | None, where: Path) -> str:
    """The template with a fixed date in place of today's."""
    if "strftime_now" not in source:
        return source
    if date is None:
        raise ConfigError(
            "The chat template writes today's date, so every day would give other tokens",
            where=where, expected="a date to write instead", got="none",
            fix="give --date, for example --date 2025-01-01",
        )  # fmt: skip
    written = {form: date.strftime(form) for _, form in _TODAY.findall(source)}
    # A macro of the same name hides the function.
    return f"{{% macro strftime_now(form) %}}{{{{ {written!r}[form] }}}}{{% endmacro %}}{source}"
