"""Checks of answers: a schema, a command in its limits, a judge."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from armwise.arms.base import ArmError
from armwise.arms.llm import UNPROMPTED, Chunk, Prompt
from armwise.arms.llm.judge import JudgeError
from armwise.arms.more.checked import CheckedParams, CommandCheck, JudgeCheck, SchemaCheck, form
from armwise.arms.retrievers import CheckResult

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "$defs": {"age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}


def never(prompt: Prompt) -> tuple[str, Chunk]:
    raise AssertionError(f"no model is prompted, least of all with {prompt}")


def run(check: SchemaCheck | CommandCheck, answer: str = "yes") -> CheckResult:
    assert check.llm is None
    assert check.compute_bound(100) == UNPROMPTED
    return check("?", (), answer, never)


def schema(satisfies: dict[str, Any]) -> SchemaCheck:
    return SchemaCheck(by="schema", satisfies=satisfies)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"name": "Ada", "age": 36}', ""),
        ('\n {"name": "Ada"} \n', ""),
        ('{"name": "Ada", "age": -1}', "$.age: -1 is less than the minimum of 0"),
        ("{}", "$: 'name' is a required property"),
        ('{"name": "Ada", "x": 1}', "$: Additional properties are not allowed ('x' was unexpected)"),
        ('```json\n{"name": "Ada"}\n```', "not JSON: Expecting value"),
        ('{"name": "Ada"} as asked', "not JSON: Extra data"),
        ("", "not JSON: Expecting value"),
        ('{"name": "Ada", "age": NaN}', "not JSON: NaN is not JSON"),
        ("[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    ],
)
def test_an_answer_satisfies_a_schema_or_is_told_what_is_wrong(answer: str, said: str) -> None:
    result = run(schema(PERSON), answer)
    assert result.score == (0.0 if said else 1.0)
    assert result.said.startswith(said)
    assert len(result.said) <= 300


@pytest.mark.parametrize(
    "satisfies",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
        {
            "$defs": {"a/b": {"not": {"$ref": "#/$defs/c"}}, "c": {"$ref": "#/$defs/a~1b"}},
            "$ref": "#/$defs/c",
        },
        {"if": {"type": "null"}, "else": {"allOf": [{}, {"$ref": "#/else"}]}},
        {"dependentSchemas": {"a": {"oneOf": [{"$ref": "#/dependentSchemas/a/oneOf/0"}]}}},
    ],
)
def test_a_schema_that_comes_back_to_itself_is_refused(satisfies: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="refers to itself"):
        schema(satisfies)


def test_a_schema_may_refer_to_itself_inside_of_a_value() -> None:
    tree = schema(
        {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}]}}}
    )
    assert run(tree, '{"left": {"left": {}}, "right": {}}').score == 1.0
    assert run(tree, '{"left": {"left": 1}}').score == 0.0
    twice = {
        "$defs": {"text": {"type": "string"}},
        "allOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/text"}],
    }
    assert run(schema(twice), '"a"').score == 1.0


def test_references_that_multiply_are_looked_at_once() -> None:
    named: dict[str, Any] = {"d3000": {}}
    for n in range(3000):
        named[f"d{n}"] = {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
    assert schema({"$defs": named, "$ref": "#/$defs/d0"}).by == "schema"


@pytest.mark.parametrize(
    ("satisfies", "answer", "message"),
    [
        ({"$ref": "#/$defs/none"}, "1", "a reference of the schema leads nowhere"),
        ({"items": {"$ref": "#"}}, "[" * 900 + "]" * 900, "RecursionError"),
    ],
    ids=["no reference", "a deep list"],
)
def test_an_answer_that_cannot_be_validated_is_an_error(
    satisfies: dict[str, Any], answer: str, message: str
) -> None:
    with pytest.raises(ArmError, match=f"the answer cannot be validated: {message}"):
        run(schema(satisfies), answer)


@pytest.mark.slow
def test_a_schema_that_takes_too_long_holds_up_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "SECONDS", 2.0)
    unique = schema({"uniqueItems": True, "items": {"type": "object"}})
    answer = "[" + ", ".join(f'{{"n": {n}}}' for n in range(70_000)) + "]"
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(run, unique, answer)
        assert run(schema(PERSON), '{"name": "Ada"}').score == 1.0
        assert not slow.done()
        with pytest.raises(ArmError, match="not validated within 2 s"):
            slow.result()


@pytest.mark.parametrize(
    ("satisfies", "message"),
    [
        ({"type": "person"}, r"not a JSON schema: \$.type: 'person' is not valid"),
        ({"properties": {"a": {"$ref": "https://schemas.example/a"}}}, "points outside the schema"),
        ({"allOf": [{"$ref": "file:///etc/passwd"}]}, "points outside the schema"),
        ({"items": {"$dynamicRef": "https://schemas.example/a#b"}}, "points outside the schema"),
    ],
)
def test_a_schema_that_is_none_or_points_elsewhere_is_refused(
    satisfies: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        schema(satisfies)


def test_a_schema_is_read_by_the_draft_that_it_names() -> None:
    old = "http://json-schema.org/draft-07/schema#"
    assert run(schema({"$schema": old, "items": [{"type": "string"}]}), "[1]").score == 0.0
    assert run(schema({"prefixItems": [{"type": "string"}]}), "[1]").score == 0.0


def command(*words: str, **limits: Any) -> CommandCheck:
    return CommandCheck(by="command", command=words, **limits)


def python(code: str, **limits: Any) -> CommandCheck:
    return command(sys.executable, "-c", code, **limits)


def test_the_exit_code_of_a_command_is_the_verdict() -> None:
    reads = "import sys; sys.exit(0 if sys.stdin.read() == 'Grüße\\n' else 3)"
    assert run(python(reads), "Grüße\n") == CheckResult(1.0)
    assert run(python(reads), "no") == CheckResult(0.0, "exit code 3")
    assert run(python("import sys; print('4 of 5'); sys.exit(1)")) == CheckResult(0.0, "exit code 1: 4 of 5")
    assert run(python("import sys; sys.stderr.write('lost')")) == CheckResult(1.0, "lost")


def test_an_answer_is_data_to_a_command_and_no_part_of_it() -> None:
    assert run(command("echo", "$HOME; false"), "$(false)") == CheckResult(1.0, "$HOME; false")


def test_a_command_has_an_own_folder_and_no_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "sk-1")
    said = run(
        python("import os; print(os.getcwd(), os.listdir(), sorted({*os.environ} - {'LC_CTYPE'}))")
    ).said
    folder, _, rest = said.partition(" ")
    assert folder != str(Path.cwd())
    assert not Path(folder).exists(), "it is removed"
    assert rest == "[] ['PATH', 'PYTHONDONTWRITEBYTECODE']"
    above = "import os; print('SECRET' in open(f'/proc/{os.getppid()}/environ').read())"
    assert run(python(above)).said == "False", "nor has the process that started it"
    assert run(command("sh", "-c", "echo $PATH")).said == os.environ["PATH"][-500:]


def test_a_command_that_is_missing_fails_the_answer() -> None:
    said = "exit code 127: 'no-such-program' cannot be started: No such file or directory"
    assert run(command("no-such-program")) == CheckResult(0.0, said)


DEAF = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(60)"


@pytest.mark.parametrize("words", [("sleep", "60"), (sys.executable, "-c", DEAF)], ids=["hangs", "deaf"])
def test_a_command_is_ended_at_its_time_limit(words: tuple[str, ...]) -> None:
    started = time.perf_counter()
    assert run(command(*words, seconds=0.3)) == CheckResult(0.0, "no exit within 0.3 s")
    assert time.perf_counter() - started < 5.0


def test_a_command_that_floods_its_output_is_ended() -> None:
    result = run(command("yes", seconds=20))
    assert result.score == 0.0
    assert result.said.startswith("exit code 153"), "128 + SIGXFSZ"
    assert len(result.said) < 600


def test_a_command_that_fills_a_file_is_ended() -> None:
    fills = "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(4096))"
    assert run(python(fills, seconds=20)).said.startswith("exit code")


def test_a_command_that_eats_memory_fails() -> None:
    result = run(python("x = bytearray(1 << 30)", memory_mib=256, seconds=20))
    assert result.score == 0.0
    assert "MemoryError" in result.said
    assert run(python("x = bytearray(1 << 20)", memory_mib=256)).score == 1.0


def alive(mark: str) -> list[str]:
    """Return the processes with a word on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if mark.encode() in words.split(b"\0"):
            found.append(folder.name)
    return found


@pytest.mark.parametrize("away", ["", "setsid "], ids=["in its session", "out of its session"])
def test_what_a_command_leaves_behind_is_killed(away: str) -> None:
    mark = f"61.{os.getpid()}{len(away)}"
    started = time.perf_counter()
    result = run(
        command("sh", "-c", f"{away}sleep {mark} & {away}sh -c '{away}sleep {mark} & sleep {mark}' &")
    )
    assert result == CheckResult(1.0)
    assert time.perf_counter() - started < 5.0
    assert not alive(mark)


@pytest.mark.parametrize("away", ["", "setsid "], ids=["in its session", "out of its session"])
def test_a_command_that_kills_its_parent_leaves_nothing_behind(away: str) -> None:
    mark = f"64.{os.getpid()}{len(away)}"
    result = run(command("sh", "-c", f"{away}sleep {mark} & kill -9 $PPID; sleep {mark}"))
    assert result == CheckResult(0.0, "exit code 137")
    assert not alive(mark)


def test_what_a_hanging_command_has_started_is_killed_with_it() -> None:
    mark = f"62.{os.getpid()}"
    assert run(command("sh", "-c", f"setsid sleep {mark} & sleep {mark}", seconds=0.3)).score == 0.0
    assert not alive(mark)


@pytest.mark.parametrize(
    ("code", "score", "said"),
    [
        ("print('of 5:'); print(0.25)", 0.25, "of 5:\n0.25"),
        ("print('1'); print()", 1.0, "1"),
        ("print(1.5)", 0.0, "no score in [0, 1] on the last line: '1.5'"),
        ("print('nan')", 0.0, "no score in [0, 1] on the last line: 'nan'"),
        ("pass", 0.0, "no score in [0, 1] on the last line: ''"),
        ("print(0.75); raise SystemExit(2)", 0.0, "exit code 2: 0.75"),
    ],
)
def test_a_command_may_print_a_score(code: str, score: float, said: str) -> None:
    assert run(python(code, scored=True)) == CheckResult(score, said)


@pytest.mark.parametrize("words", [(), ("a\0b",), ("",)])
def test_a_command_without_words_or_with_nul_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="command"):
        command(*words)


def test_a_judge_grades_the_answer() -> None:
    prompts = list[Prompt]()

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        return '{"score": 7}', Chunk(finish_reason="stop", prompt_tokens=3, completion_tokens=1)

    check = JudgeCheck(by="judge")
    assert check.llm == "default"
    assert check("Which river?", (), "The Danube.", write) == CheckResult(0.7, "a grade of 7")
    assert "The Danube." in prompts[0].messages[-1]["content"]
    assert check.compute_bound(100).written > 0
    assert check.compute_bound(200).read > check.compute_bound(100).read

    def mumbles(prompt: Prompt) -> tuple[str, Chunk]:
        del prompt
        return "well", Chunk(finish_reason="stop")

    with pytest.raises(JudgeError, match="the judge wrote no grade"):
        check("Which river?", (), "The Danube.", mumbles)


def test_the_parameters_say_what_check_is_wanted() -> None:
    read = TypeAdapter(CheckedParams).validate_python
    given = {"first": "a", "then": "b", "check": {"by": "command", "command": ["true"]}}
    assert isinstance(read(given).check, CommandCheck)
    assert (read(given).threshold, read(given).explore) == (0.5, 0.0)
    with pytest.raises(ValidationError, match="by"):
        read({**given, "check": {"command": ["true"]}})
    assert issubclass(JudgeError, ArmError)
