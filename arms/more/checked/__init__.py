"""An arm whose answer is checked before it is sent; where it fails, a second language model answers."""

from .arm import CheckedArm, CheckedParams
from .command import CommandCheck
from .judged import JudgeCheck
from .schema import SchemaCheck

__all__ = ["CheckedArm", "CheckedParams", "CommandCheck", "JudgeCheck", "SchemaCheck"]
