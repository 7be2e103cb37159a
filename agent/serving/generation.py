"""How the answer of a turn is generated: the language models, and what they read of each arm."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent.serving.arm_health import Report, llm_key
from agent.serving.messages import ArmInfo, Ask
from arms.base import Passage
from arms.llm import Generator, GeneratorError, Prompt, base, prompts, writing


@dataclass(frozen=True, slots=True)
class Model:
    """A language model of the service.

    Attributes:
        generator: Writes answers.
        usd_of: Price of tokens that it reads and writes.
        options: Names of the `Prompt.options` that it is given.
        hedged: Whether a prompt is sent twice where its first words take long; both are charged.
    """

    generator: Generator
    usd_of: Callable[[int, int], float] = lambda *_: 0.0
    options: frozenset[str] = base.OPTIONS
    hedged: bool = False


def prompt_of(
    ask: Ask,
    passages: Sequence[Passage],
    how: writing.Answering,
    template: prompts.Template | None,
    known: frozenset[str],
) -> Prompt:
    """Return what a language model is asked; what the request names comes before what the arm says.

    Args:
        ask: The request.
        passages: What the arm found, best first.
        how: How its answers are written.
        template: The instructions; None for those of a short sentence.
        known: Names of the options that the model is given.
    """
    options = {} if how.reasoning is None else {"reasoning_effort": how.reasoning}
    options |= ask.options
    return Prompt(
        prompts.answer_prompt(
            ask.messages, passages, word_budget=how.word_budget, template=template, cite=how.cite
        ),
        max_tokens=how.max_tokens if ask.max_tokens is None else ask.max_tokens,
        temperature=how.temperature if ask.temperature is None else ask.temperature,
        top_p=how.top_p if ask.top_p is None else ask.top_p,
        seed=ask.seed,
        stop=ask.stop,
        options={name: value for name, value in options.items() if name in known},
    )


@contextmanager
def reported(report: Report, model: str) -> Iterator[None]:
    """Report how a language model ended. What was cancelled, or refused a prompt, is not evidence of it."""
    key = (llm_key(model),)
    try:
        yield
    except (base.PromptTooLongError, base.PromptRefusedError):
        report(refused=key)
        raise
    except base.GeneratorBusyError as error:
        report(failed=key, rest_s=error.retry_after_s)
        raise
    except (GeneratorError, TimeoutError):
        report(failed=key)
        raise
    report(worked=key)


def llms_of(ask: Ask, arms: Mapping[str, ArmInfo]) -> dict[str, str]:
    """Return the language model of each arm, where an answer is asked for."""
    return {name: info.answering.llm for name, info in arms.items()} if ask.messages else {}


def k_of(ask: Ask, info: ArmInfo) -> int:
    """Return how many passages a request wants of an arm."""
    return info.answering.passages if ask.k is None else ask.k
