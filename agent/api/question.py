"""The question of a conversation: what a person asked last.

Agents write text of their own into the messages of a user: reminders, the state of an editor, the output of a
command. It is left out of the question, which arms search for and policies read. The language model gets the
messages as they are.
"""

import re
from collections.abc import Sequence

HARNESS = frozenset(
    (
        *("system-reminder", "system_reminder", "local-command-caveat", "local-command-stdout"),
        *("local-command-stderr", "bash-stdout", "bash-stderr", "command-message", "user-prompt-submit-hook"),
        *("task-notification", "new-diagnostics", "environment_context", "environment_details"),
        *("user_instructions", "turn_aborted", "user_info", "additional_data", "attached_files"),
        *("open_and_recently_viewed_files", "system_notification"),
    )
)
"""Elements that an agent writes; they are left out with their text."""

WRAPPERS = frozenset(("command-name", "command-args", "bash-input", "user_query", "user_message", "task"))
"""Elements that an agent puts around what a person wrote; their text is kept."""

NOTES = frozenset(("[Request interrupted by user]", "[Request interrupted by user for tool use]"))
"""Lines that an agent writes."""

_TAG = re.compile(r"<(/?)([a-z][a-z_-]{1,40})(?:\s[^<>]{0,200})?>")


def read_person(text: str) -> str:
    r"""Return what a person wrote in a text of a user's message; empty where an agent wrote all of it.

    An element without its end is text of a person, who may ask about it.

    >>> read_person("<system-reminder>Be brief.</system-reminder>\nWhy is it slow?")
    'Why is it slow?'
    >>> read_person("<user_query>\nWhy?\n</user_query>"), read_person("What is <system-reminder>?")
    ('Why?', 'What is <system-reminder>?')
    """
    if "<" not in text and "[" not in text:
        return text
    cuts, opened = list[tuple[int, int]](), dict[str, tuple[int, int]]()
    for tag in _TAG.finditer(text):
        name = tag[2]
        if name not in HARNESS and name not in WRAPPERS:
            continue
        if not tag[1]:
            opened[name] = tag.span()
        elif name in opened:
            begin, end = opened.pop(name)
            whole = name in HARNESS
            cuts += [(begin, tag.end())] if whole else [(begin, end), tag.span()]
    written = _without(text, cuts)
    if not NOTES.isdisjoint(written.split("\n")):
        written = "\n".join(line for line in written.split("\n") if line not in NOTES)
    return written.strip() if cuts or len(written) < len(text) else text


def _without(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    """Return a text without some of its stretches, which may lie in one another."""
    kept, at = list[str](), 0
    for begin, end in sorted(cuts):
        kept.append(text[at : max(at, begin)])
        at = max(at, end)
    return "".join((*kept, text[at:]))


def find_question(texts: Sequence[str]) -> int | None:
    """Return which of the texts of a user's messages, oldest first, has the question; None for no text.

    It is the last one in which a person wrote something, or else the last one that is not empty.

    >>> find_question(["Why?", "<system-reminder>Go on.</system-reminder>", ""])
    0
    """
    positions = range(len(texts) - 1, -1, -1)
    person = (at for at in positions if read_person(texts[at]).strip())
    filled = (at for at in positions if texts[at].strip())
    return next(person, next(filled, None))
