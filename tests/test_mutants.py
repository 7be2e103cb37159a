"""The mutation runs of `benchmarks/mutants.py`: the faults that they plant, the tests that notice them."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.mutant_operators import mutants
from benchmarks.mutant_worker import forked

ROOT = Path(__file__).parents[1]


def planted(source: str, tmp_path: Path) -> list[str]:
    """Return the changed line of each fault that may be planted in a source."""
    source = dedent(source).strip()
    (tmp_path / "code.py").write_text(source)
    changed = []
    for mutant in mutants("code.py", tmp_path):
        found = mutant.planted(source.encode()).decode()
        compile(found, "code.py", "exec")
        before, after = source.splitlines(), found.splitlines()
        changed += [new.strip() for old, new in zip(before, after, strict=True) if old != new]
    return sorted(changed)


FIRST = "__import__('itertools').islice"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["(a <= b)"]),
        ("a <= b < c", ["(a < b < c)", "(a <= b <= c)"]),
        ("a == b", ["(a != b)"]),
        ("a not in b", ["(a in b)"]),
        ("a and b", ["(a)", "(b)"]),
        ("a or b or c", ["(a or b)", "(a or c)", "(b or c)"]),
        ("not a", ["(a)"]),
        ("a if b else c", ["(a)", "(c)"]),
        ("a + b", ["(a - b)", "(a)"]),
        ("a - b", ["(a + b)", "(a)"]),
        ("'text' + b", []),
        ("a = 1", ["a = (2)"]),
        ("a = 20", ["a = (40)"]),
        ("a = 0.5", ["a = (1.0)"]),
        ("a = 0.0", ["a = (1.0)"]),
        ("a = True", ["a = (False)"]),
        ("a = b[-1]", ["a = b[(0)]", "a = b[-(2)]"]),
        ("a = b[c:d]", ["a = (b[:d])", "a = (b[c:])"]),
        ("a = f(b, c=d)", ["a = (f(b))"]),
        ("a = f(b, help=d)", []),
        ("a = min(b, c)", ["a = (max(b, c))"]),
        ("a = sorted(b)", ["a = (list(b))"]),
        ("a = b.lower()", ["a = (b)"]),
        ("f(a)", ["pass"]),
        ("del a[b]", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["a -= b", "a = b"]),
        ("key = (a, b, c)", ["key = ((a, b))"]),
        ("a = [b, c]", ["a = ([b])", "a = ([c])"]),
        ("a = {'b': c, 'd': e}", ["a = ({'b': c})", "a = ({'d': e})"]),
        ("[b for b in c]", [f"[b for b in ({FIRST}(c, 1))]"]),
        ("{b for b in c if d}", [f"{{b for b in ({FIRST}(c, 1)) if d}}", "{b for b in c if (True)}"]),
        ("for a in b:\n    continue", ["break", f"for a in ({FIRST}(b, 1)):"]),
        ("if a:\n    b = c", ["if (False):"]),
        ("if TYPE_CHECKING:\n    import a", []),
        ("os.fsync(a)", []),
        ("f(a, compression=b, highlight=False)", ["pass"]),
        ("try:\n    a = b\nexcept BaseException:\n    raise", ["except (Exception):"]),
        ("async def f():\n    await asyncio.shield(a)", ["await (a)", "pass"]),
        ("assert a < 1", []),
        ("raise ValueError(f'{a + 1} is wrong' if b else c)", []),
        ("logger.warning('%d', a + 1)", []),
        ("a: Literal[1] | None = b", []),
        ("@cache(1)\ndef f(a: int | None = None) -> int | None:\n    return a", []),
    ],
)  # fmt: skip
def test_these_faults_are_planted_in(source: str, expected: list[str], tmp_path: Path) -> None:
    assert planted(source, tmp_path) == sorted(expected)


def test_what_runs_at_import_names_what_it_makes_and_what_runs_in_a_function_does_not(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "MOST = 20\n\nclass Settings:\n    beat_s: float = 30.0\n\n"
        "def wait(times: int = 3):\n    return times - 1\n"
    )
    found = {(one.before, one.names) for one in mutants("code.py", tmp_path)}
    assert found >= {
        ("20", ("MOST",)),
        ("30.0", ("Settings", "beat_s")),
        ("3", ("wait",)),
        ("times - 1", ()),
        ("1", ()),
    }


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_lists_the_faults_that_no_test_notices_and_no_other(tmp_path: Path) -> None:
    files = {
        "agent/limits.py": """
            MOST = 3
            UNUSED = 5

            def admitted(n):
                return n < MOST

            def rounded(n):
                return n + 1 if n else n + 1
            """,
        "tests/test_limits.py": """
            import hypothesis.strategies as st
            import pytest
            from hypothesis import given

            from armwise.agent import limits

            @pytest.mark.parametrize("n", [2, 3, 4])
            def test_most(n):
                assert limits.admitted(n) == (n in (0, 1, 2))

            @given(st.integers(1, 9))
            def test_round(n):
                assert limits.rounded(n) > n
            """,
        "agent/child.py": """
            def answer():
                return 40 + 2
            """,
        "tests/agent/test_child.py": """
            import subprocess
            import sys

            def test_the_answer_of_another_process():
                code = "from armwise.agent.child import answer; print(answer())"
                assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"42\\n"
            """,
        "agent/__init__.py": "",
        "arms/__init__.py": "",
        "feedback/__init__.py": "",
        "armwise/__init__.py": "",
        ".gitignore": ".cache\n__pycache__\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text).lstrip())
    for name in ("agent", "arms", "feedback"):
        (tmp_path / "armwise" / name).symlink_to(f"../{name}")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)

    def run(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, str(ROOT / "benchmarks" / "mutants.py"), "--workers", "1", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.returncode, (ended.stdout + ended.stderr).splitlines()

    status, lines = run("agent", "--n", "99")
    listed = sorted(line.split("  (")[0].strip() for line in lines if line.startswith("  agent/"))
    assert listed == [
        "agent/limits.py:2  5  ->  6",
        "agent/limits.py:8  1  ->  2",
        "agent/limits.py:8  1  ->  2",
        "agent/limits.py:8  n + 1  ->  n",
        "agent/limits.py:8  n + 1  ->  n - 1",
        "agent/limits.py:8  n + 1 if n else n + 1  ->  n + 1",
    ], lines
    assert status == 0
    (tmp_path / "tests" / "test_new.py").write_text(
        "from armwise.agent import limits\n\n"
        "def test_unused():\n    assert limits.UNUSED == 5 and limits.rounded(0) == 1\n"
    )
    status, lines = run("agent", "--again", "--most", "0.1")
    assert [line.strip().split("  (")[0] for line in lines if line.startswith("  agent/")] == [
        "agent/limits.py:8  n + 1 if n else n + 1  ->  n + 1",
        "agent/limits.py:8  1  ->  2",
    ], lines
    assert (status, lines[-1]) == (1, "2 of 14 survive, more than 10%")


def test_a_test_that_does_not_end_notices() -> None:
    assert forked([__file__], limit_s=0.0, first=True) == ["a test does not end"]
