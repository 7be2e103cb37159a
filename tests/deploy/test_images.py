"""The Dockerfile and compose.yaml: reviewed by others' programs, and closed where they promise to be."""

import fnmatch
import importlib.resources
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from armwise.agent.config import parse

ROOT = Path(__file__).parents[2]
DOCKER, COMPOSE = ROOT / "deploy/docker", ROOT / "deploy/compose"
TEMPLATE = ROOT / "agent/config/template.yaml"
SERVICES = ("armwise", "grafana", "postgres", "prometheus")


def instructions() -> list[tuple[str, str]]:
    """Return the name and the rest of each instruction of the Dockerfile, its continued lines joined."""
    lines = (DOCKER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def compose() -> dict[str, Any]:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))


def served(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint, "--config", DOCKER / "hadolint.yaml", DOCKER / "Dockerfile"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # it reads no path with an umlaut otherwise
    reviewed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert reviewed.returncode == 0, reviewed.stdout


def test_every_install_of_the_image_is_of_a_lock_with_hashes() -> None:
    installs = [words for rest in of("RUN") for words in re.findall(r"pip install ([^&;]*)", rest)]
    unhashed = [words for words in installs if "--require-hashes" not in words]
    assert len(installs) == 7
    assert all("--no-deps" in words for words in installs)
    assert all("requirements/torch.txt" in words or words.rstrip().endswith(" .") for words in unhashed), (
        unhashed
    )
    locks = set(re.findall(r"requirements/(\w+)\.txt", " ".join(installs)))
    assert {f"{lock}.txt" for lock in locks} <= {path.name for path in (ROOT / "requirements").iterdir()}


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert "*" in lines
    sources = [word for rest in of("COPY") if "--from" not in rest for word in rest.split()[:-1]]
    assert {"armwise", "agent", "arms", "feedback", "requirements/base.txt"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == path or source.startswith(f"{path}/") for path in allowed), source
    for secret in (".env", "deploy/compose/.env", ".git", ".venv", "log.db"):
        assert not any(fnmatch.fnmatch(secret, f"{path}*") for path in allowed), secret


def test_the_image_runs_as_a_fixed_user_and_passes_signals_on() -> None:
    user = of("USER")[-1]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    created = " ".join(of("RUN"))
    uid, gid = user.split(":")
    assert f"--uid {uid} --gid {gid}" in created
    assert json.loads(of("ENTRYPOINT")[0]) == ["/usr/bin/tini", "--"]  # the form without a shell
    assert json.loads(of("CMD")[0])[:2] == ["armwise", "serve"]
    assert json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])[0] == "python3"


def test_both_variants_run_what_was_installed_for_them() -> None:
    stages = [rest.split()[-1] for rest in of("FROM")]
    assert stages[-1] == "cpu"  # what a build without --target makes
    copies = [rest for rest in of("COPY") if "/opt/armwise" in rest]
    assert copies == [f"--from=installed-{variant} /opt/armwise /opt/armwise" for variant in ("gpu", "cpu")]
    assert len(set(of("USER"))) == 1


def test_what_is_written_goes_to_volumes_and_tmp() -> None:
    volumes = json.loads(of("VOLUME")[0])
    env = dict(pair.split("=", 1) for rest in of("ENV") for pair in shlex.split(rest))
    written = {
        name: env[name] for name in ("HOME", "ARMWISE_HOME", "HF_HOME", "MPLCONFIGDIR", "TRITON_CACHE_DIR")
    }
    for name, path in written.items():
        assert path.startswith((*volumes, "/tmp/")), name


def test_the_configurations_in_containers_are_that_of_one_corpus_but_for_address_key_and_log() -> None:
    own, image, composed = (
        served(path) for path in (TEMPLATE, DOCKER / "serve_config.yaml", COMPOSE / "serve_config.yaml")
    )
    for made, added in ((image, {"keys"}), (composed, {"keys", "log_url", "hosts"})):
        assert made["http_options"] == {"host": "0.0.0.0", "port": 8000}
        args, expected = made["applications"][0].pop("args"), own["applications"][0]["args"]
        parse(args)
        assert args.keys() - expected.keys() == added
        assert {name: args[name] for name in expected} == expected
        rest = {**own, "applications": [{**own["applications"][0]}], "http_options": made["http_options"]}
        rest["applications"][0].pop("args")
        assert made == rest


@pytest.mark.slow
def test_compose_fits_the_specification() -> None:
    schemas = importlib.resources.files("check_jsonschema.builtin_schemas")
    schema = json.loads((schemas / "vendor/compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(compose(), schema)


def test_compose_opens_ports_to_this_machine_alone_and_none_of_ray_or_postgresql() -> None:
    services = compose()["services"]
    assert sorted(services) == sorted(SERVICES)
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert sorted(int(port.rpartition(":")[2]) for port in ports) == [3000, 8000, 9090]
    assert "ports" not in services["postgres"]
    assert services["postgres"]["networks"] == ["log"]
    assert compose()["networks"]["log"] == {"internal": True}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_compose_is_hardened_healthy_and_pinned(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name == "armwise":  # its image has the check
        assert of("HEALTHCHECK")
    else:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert re.search(r":v?\d+[\w.-]*$", service["image"]), service["image"]


def test_secrets_of_compose_come_from_the_env_file_and_have_no_default() -> None:
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    example = dict(
        line.split("=", 1)
        for line in (COMPOSE / "example.env").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    assert asked == example.keys() == {"ARMWISE_API_KEY", "POSTGRES_PASSWORD", "GRAFANA_PASSWORD"}
    assert set(example.values()) == {""}
    secret = [
        value
        for service in compose()["services"].values()
        for name, value in service.get("environment", {}).items()
        if re.search("PASSWORD|KEY", name)
    ]
    assert len(secret) >= 3
    assert [value for value in secret if not re.fullmatch(r"\$\{\w+:\?.+\}", value)] == []


def test_the_project_ignores_the_env_file() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/compose/.env"], cwd=ROOT, check=False)
    assert ignored.returncode == 0


def test_the_unit_of_systemd_is_confined() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze, which reviews the unit, is not installed here")
    unit = ROOT / "deploy/systemd/armwise.service"
    review = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    reviewed = subprocess.run(review, capture_output=True, text=True, check=False)
    assert reviewed.returncode == 0, reviewed.stdout
    checked = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in checked.stderr.splitlines() if "is not executable" not in line]
    assert complaints == []  # but that /opt/armwise is not here
