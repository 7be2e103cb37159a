"""Texts of others in a terminal, on a page and in a log line: what would control these is shown as its code.

A question, a title, the name of a metric or the message of a remote service may hold escape sequences that
rewrite a terminal, marks that reverse the direction of a line, or line breaks that forge a log line.
"""

import logging
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_CONTROLS = (
    *(range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0), range(0x061C, 0x061D)),
    *(range(0x200E, 0x2010), range(0x2028, 0x202F), range(0x2060, 0x2070), range(0xFEFF, 0xFF00)),
    *(range(0xD800, 0xE000), range(0xE0000, 0xE0080)),
)
"""Code points of control characters, marks of direction, separators, lone surrogates and invisible tags."""

_CODES = {code: ascii(chr(code))[1:-1] for codes in _CONTROLS for code in codes}


def visible(text: str) -> str:
    r"""Return a text with codes in place of what is not shown but acts; tabs and line breaks stay.

    >>> print(visible("\x1b[2J\u202egnp.exe"))
    \x1b[2J\u202egnp.exe
    """
    return text if text.isascii() and text.isprintable() else text.translate(_CODES)


def one_line(text: str) -> str:
    r"""Return a text as `visible` does, its line breaks as codes too.

    >>> print(one_line("failed\nWARNING all is well"))
    failed\nWARNING all is well
    """
    return visible(text).replace("\n", "\\n")


class Terminal(Console):
    """A console that prints texts as they are: it reads no markup, and sends no control character.

    A `str`, also one in a cell of a table, is one line: its line breaks are shown as codes. Lines that belong
    together are a `rich.text.Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text of one line."""
        return super().render_str(one_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of what is printed; those that move the cursor are the console's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class LogRecord(logging.LogRecord):
    """A record that is one line, followed by an indented traceback if there is one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = _format_traceback(self.exc_info)

    def getMessage(self) -> str:  # noqa: N802 (of the standard library)
        r"""Return the message with its line breaks as codes.

        >>> LogRecord("a", 30, "", 1, "failed: %s", ("no\nWARNING all is well",), None).getMessage()
        'failed: no\\nWARNING all is well'
        """
        return one_line(super().getMessage())


def _format_traceback(
    info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None],
) -> str:
    lines = "".join(traceback.format_exception(*info)).rstrip("\n").split("\n")
    return "\n".join(f"  {visible(line)}" for line in lines)


def log_plainly() -> None:
    """Make every log record of this process a `LogRecord`."""
    logging.setLogRecordFactory(LogRecord)
