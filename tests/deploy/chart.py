"""Render the Helm chart with Helm's own library, without a cluster.

python -m tests.deploy.chart    writes the golden files anew

Helm's library is a Go program in a shared object: it runs in a process of its own, not among the tests.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/armwise"
GOLDEN = Path(__file__).parent / "golden"
VALUES = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}


class ChartError(Exception):
    """Helm refuses the chart or the values; the message is Helm's."""


def rendered(values: dict[str, Any], name: str = "armwise") -> str:
    """Return what `helm template --namespace agents` prints, without empty documents.

    Raises:
        ChartError: The values do not fit the schema, or a template fails.
    """
    command = [sys.executable, "-m", "tests.deploy.chart", name]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(values), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChartError(done.stderr)
    return done.stdout


def values_of(name: str) -> dict[str, Any]:
    """Return the values of a case."""
    return yaml.safe_load(VALUES[name].read_text(encoding="utf-8"))


def _render(name: str, values: dict[str, Any]) -> str:
    from helm_python import Chart, HelmError, lint  # 85 MB

    try:
        with Chart.load(CHART) as chart:
            chart.validate_schema(chart.merge_values(values))
            manifests = chart.render(values, name=name, namespace="agents")
    except HelmError as error:
        sys.exit(str(error))
    if errors := lint(CHART, values, strict=True)["errors"]:
        sys.exit("\n".join(errors))
    parts = [
        f"# Source: {path}\n{text.strip()}\n" for path, text in sorted(manifests.items()) if text.strip()
    ]
    return "---\n".join(parts)


def _main() -> None:
    if len(sys.argv) > 1:
        sys.stdout.write(_render(sys.argv[1], json.load(sys.stdin)))
        return
    for case in VALUES:
        (GOLDEN / f"{case}.yaml").write_text(rendered(values_of(case)), encoding="utf-8")


if __name__ == "__main__":
    _main()
