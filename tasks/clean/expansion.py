"""Templates that the dump itself defines, expanded as MediaWiki's preprocessor does it.

A template's wikitext is read once into a tree; a call walks it with the call's arguments, which are
walked only where they are asked for. There is no Lua: what calls it shows nothing. Depth, size,
number of calls and time are bounded, and a template that calls itself shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.clean.calls import ODD_CALL, Call
from tasks.clean.marks import DROPPED
from tasks.clean.names import template_name
from tasks.clean.parser_functions import FUNCTIONS, VARIABLES, Page
from tasks.clean.syntax import Argument, Braces, Node, Part, parse, transcluded
from tasks.clean.wiki import Deadline, Ledger, Wiki

_MAX_DEPTH = 40
_MAX_CALLS = 100_000
_MAX_CHARACTERS = 5_000_000
_MAX_REDIRECTS = 3
_REDIRECT = re.compile(r"\s*#[^\s\[\]:]{2,30}\s*:?\s*\[\[[^\[\]|:]*:([^\[\]|#]+)", re.I)
_MOST_PARSED = 1_000_000


class TooMuch(Exception):
    """A call's expansion passes a limit; it shows nothing."""


@dataclass
class Frame:
    """One template at work.

    Attributes:
        name: the template; empty for the page.
        arguments: what it was called with, not walked yet.
        parent: the frame of the call, in which the arguments are walked.
        depth: how many frames are around it.
    """

    name: str = ""
    arguments: Mapping[str, Part] = field(default_factory=dict)
    parent: Frame | None = None
    depth: int = 0
    values: dict[str, str] = field(default_factory=dict)

    def calls(self, name: str) -> bool:
        """True where a template is at work in this frame or around it."""
        frame: Frame | None = self
        while frame is not None:
            if frame.name == name:
                return True
            frame = frame.parent
        return False


class Expander:
    """Expands the calls of one page.

    Args:
        wiki: the wiki, with its library.
        title: the page's title.
        ledger: takes the names of templates that are not known.
        deadline: the page's.
    """

    def __init__(self, wiki: Wiki, title: str, ledger: Ledger, deadline: Deadline) -> None:
        self._wiki, self._ledger, self._deadline = wiki, ledger, deadline
        self._page = Page(title, wiki.site, wiki.language, wiki.today, wiki.library)
        self._calls = self._characters = 0
        # A page that was cut off once is not given as much again for its next call.
        self._exhausted = False

    def knows(self, name: str) -> bool:
        """True where a call by this name can be expanded."""
        name = template_name(name)
        word, colon, _ = name.partition(":")
        if (colon and word.lower().strip() in FUNCTIONS) or name in VARIABLES:
            return True
        if not self._wiki.library or self._wiki.templates.knows(name):
            return False
        return self._find(name)[1] is not None

    def expand(self, source: str) -> str | None:
        """What a whole call expands to, as wikitext.

        Args:
            source: from `{{` to `}}`.

        Returns:
            None where the call is of nothing that is known here, or passes a limit.
        """
        if self._exhausted:
            return None
        nodes = parse(source)
        if len(nodes) != 1 or not isinstance(nodes[0], Braces):
            return None
        self._deadline.check()
        try:
            return self._call(nodes[0], Frame())
        except (TooMuch, RecursionError):
            self._exhausted = self._calls > _MAX_CALLS or self._characters > _MAX_CHARACTERS
            return None

    def text(self, nodes: list[Node], frame: Frame) -> str:
        """The text of nodes."""
        pieces = []
        for node in nodes:
            if isinstance(node, str):
                pieces.append(node)
            elif isinstance(node, Argument):
                pieces.append(self._argument(node, frame))
            else:
                pieces.append(self._call(node, frame) or "")
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        self._characters += len(text)
        if self._characters > _MAX_CHARACTERS:
            raise TooMuch
        return text

    def _argument(self, node: Argument, frame: Frame) -> str:
        name = self.text(node.name, frame).strip()
        if name in frame.values:
            return frame.values[name]
        part = frame.arguments.get(name)
        if part is None:
            # An argument that is not given and has no default shows its own braces.
            return self.text(node.default, frame) if node.default is not None else ""
        text = self.text(part.value, frame.parent or frame).replace(DROPPED, "")
        frame.values[name] = text.strip() if part.name is not None else text
        return frame.values[name]

    def _call(self, node: Braces, frame: Frame) -> str | None:
        self._calls += 1
        if self._calls > _MAX_CALLS or frame.depth > _MAX_DEPTH:
            raise TooMuch
        self._deadline.check()
        head = template_name(self.text(node.head, frame).replace(DROPPED, ""))
        try:
            shown = self._called(head, node, frame)
        except ODD_CALL:
            shown = None
        if shown is None and frame.name:
            self._ledger.templates[head.partition(":")[0][:80].lower()] += 1
        return shown

    def _called(self, head: str, node: Braces, frame: Frame) -> str | None:
        word, colon, first = head.partition(":")
        function = FUNCTIONS.get(word.lower().strip()) if colon else None
        if function is not None:
            return function(
                first.strip(), node.parts, lambda nodes: self.text(nodes, frame), self._page
            )
        if not node.parts and (variable := VARIABLES.get(head)) is not None:
            return variable(self._page)
        return None if head.startswith("#") else self._template(head, node, frame)

    def _template(self, name: str, node: Braces, frame: Frame) -> str | None:
        renderer = self._wiki.templates.find(name)
        if renderer is not None:
            return renderer(self._shown_call(node, frame))
        if self._wiki.templates.knows(name):
            return None
        name, source = self._find(name)
        if source is None or frame.calls(name):
            return None
        if self._wiki.templates.knows(name):
            renderer = self._wiki.templates.find(name)
            return renderer and renderer(self._shown_call(node, frame))
        inner = Frame(name, self._named(node.parts, frame), frame, frame.depth + 1)
        return self.text(_TREES.of(source), inner)

    def _shown_call(self, node: Braces, frame: Frame) -> Call:
        call = Call(today=self._wiki.today, language=self._wiki.language)
        for name, part in self._named(node.parts, frame).items():
            call.values[name] = self.text(part.value, frame).strip()
            call.count += part.name is None
        return call

    def _named(self, parts: list[Part], frame: Frame) -> dict[str, Part]:
        named: dict[str, Part] = {}
        count = 0
        for part in parts:
            if part.name is None:
                count += 1
                named[str(count)] = part
            else:
                named[self.text(part.name, frame).strip()] = part
        return named

    def _find(self, name: str) -> tuple[str, str | None]:
        """A template's own name and wikitext, behind its redirects."""
        source = None
        for _ in range(_MAX_REDIRECTS):
            name = " ".join(name.replace("_", " ").split())
            if self._wiki.capitalised:
                name = name[:1].upper() + name[1:]
            source = self._wiki.library.get(name)
            redirect = _REDIRECT.match(source) if source else None
            if redirect is None:
                break
            name = redirect[1].strip()
            if self._wiki.templates.knows(name):
                return name, ""
        return name, source


class _Trees:
    """Trees of templates, remembered for the next call; their wikitext's size is bounded."""

    def __init__(self) -> None:
        self._trees: dict[str, list[Node]] = {}
        self._size = 0

    def of(self, source: str) -> list[Node]:
        tree = self._trees.get(source)
        if tree is None:
            if self._size > _MOST_PARSED:
                self._trees.clear()
                self._size = 0
            tree = self._trees[source] = parse(transcluded(source))
            self._size += len(source)
        return tree


_TREES = _Trees()
