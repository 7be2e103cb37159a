"""The lines of files of rows such as CSV: a row that cannot be read gives its lines back."""

import csv
import re
from typing import IO

DELIMITERS = ",;\t|"
"""What separates cells."""

SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?\s*', re.IGNORECASE)
"""A first line that says what separates cells, as spreadsheets write it."""


class RowLines:
    """The lines of a text; those of a row can be given back, to be read again.

    Args:
        text: The text, its ends of lines as they are.
        longest: Characters that a line may have.
    """

    def __init__(self, text: IO[str], longest: int) -> None:
        self._text, self._longest, self._before = text, longest, 0
        self._taken, self._again = list[str](), list[str]()

    def __iter__(self) -> "RowLines":
        return self

    def __next__(self) -> str:
        """Raises csv.Error for a line that is too long, and goes on behind it."""
        line = self._again.pop() if self._again else self._text.readline(self._longest + 1)
        if not line:
            raise StopIteration
        if len(line) > self._longest:
            while line and line[-1] not in "\r\n":
                line = self._text.readline(self._longest)
            self._taken.append("\n")
            raise csv.Error(f"a line has more than {self._longest:,} characters")
        self._taken.append(line)
        return line

    def begin_row(self) -> int:
        """Return the number of the next line, from 1, with which a row begins."""
        self._before += len(self._taken)
        self._taken.clear()
        return self._before + 1

    def give_back(self, kept: int) -> None:
        """Give the lines of the row back, but for the first ones."""
        self._again += reversed(self._taken[kept:])
        del self._taken[kept:]
