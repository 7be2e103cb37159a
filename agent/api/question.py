"""The question of a conversation: what a person asked last.

Agents write text of their own into the messages of a user: reminders, the state of an editor, the output of a
command. It is left out of the question, which arms search for and policies read. The language model gets the
messages as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from armwise.arms.tokenizer import UNSPACED

BRIEF_WORDS, BRIEF_CHARS = 3, 60
"""Most words and characters of a message that is read together with what it answers.

A character of a script without blanks between words, such as Chinese, is half a word.
"""

ANSWERED_CHARS = 300
"""Most characters of an assistant's text that are read with the message that answers it: its last ones."""

READ_CHARS = 1 << 20
"""Characters of a message in which elements of an agent are looked for: the rest is left out."""

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

_UNSPACED = regex.compile(rf"{UNSPACED}\p{{M}}*")

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
    text = text[:READ_CHARS]
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


@dataclass(frozen=True, slots=True)
class Question:
    """What a person asked last.

    Attributes:
        text: The question; empty if no message of a user has a text.
        at: Position of the message that it was found in; the number of messages if there is none.
    """

    text: str
    at: int


def read_question(turns: Sequence[tuple[str, str]], most_chars: int, *, quotes: bool = True) -> Question:
    r"""Return what a person asked last.

    A message of a few words, such as "yes", is read with what it answers: the last longer message of a
    person, or else the first one; then the end of what the assistant said since; then the words.

    Args:
        turns: Role and text of each message, oldest first; only `user` and `assistant` are read.
        most_chars: Most characters of a question. To keep to it, first the assistant's text is cut, then the
            end of the longer message. A message that is read alone is not cut.
        quotes: Whether the assistant's text is read. It may quote passages that others must not see.

    >>> refactor = [("user", "Refactor billing to use the new table"), ("assistant", "Drop the old one?")]
    >>> read_question([*refactor, ("user", "yes")], 8000)
    Question(text='Refactor billing to use the new table\nDrop the old one?\nyes', at=2)
    >>> read_question([("user", "Weather in Paris?")], 8000)
    Question(text='Weather in Paris?', at=0)
    """
    users = [at for at, (role, _) in enumerate(turns) if role == "user"]
    found = find_question([turns[at][1] for at in users])
    if found is None:
        return Question("", len(turns))
    at, text = users[found], turns[users[found]][1]
    person = read_person(text)
    words, task, began = person.strip(), "", 0
    if not words:
        return Question(text, at)  # an agent wrote all of it
    for earlier in reversed(users[:found]) if _is_brief(words) else ():
        if longer := read_person(turns[earlier][1]).strip():
            task, began = longer, earlier
            if not _is_brief(longer):
                break
    task = task[: max(0, most_chars - len(words) - 1)]
    if not task:
        return Question(person, at)
    said = (text.strip() for role, text in reversed(turns[began:at]) if role == "assistant" and quotes)
    room = min(ANSWERED_CHARS, most_chars - len(task) - len(words) - 2)
    answered = next(filter(None, said), "")[-room:] if room > 0 else ""
    return Question("\n".join(filter(None, (task, answered, words))), at)


def _is_brief(text: str) -> bool:
    """Return whether a text has too few words to be a question without what it answers.

    >>> [_is_brief(text) for text in ("oui, vas-y !", "继续吧", "Why is it slow?", "为什么构建这么慢")]
    [True, True, False, False]
    """
    if len(text) > BRIEF_CHARS:
        return False
    spaced, characters = _UNSPACED.subn(" ", text)
    words = sum(any(map(str.isalnum, word)) for word in spaced.split())
    return bool(words + characters / 2 <= BRIEF_WORDS)
