"""The Helm chart: it renders its golden files, which fit the schemas and keep what the chart promises."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from ray.serve.schema import ServeDeploySchema

from armwise.agent.config import AppConfig, parse
from tests.agent.api.test_routes import OPEN, ROUTES
from tests.deploy.chart import CHART, GOLDEN, ROOT, VALUES, ChartError, rendered, values_of

TEMPLATE = ROOT / "agent/config/template.yaml"

KUBERNETES = "1.37"
SCHEMA = json.loads((Path(__file__).parent / "rayservice.schema.json").read_text(encoding="utf-8"))


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of Kubernetes; NOTES.txt is none."""
    manifests = [
        part for part in text.split("---\n") if not part.startswith("# Source: armwise/templates/NOTES")
    ]
    return [yaml.safe_load(part) for part in manifests]


@pytest.fixture(params=VALUES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def golden(case: str) -> list[dict[str, Any]]:
    return documents((GOLDEN / f"{case}.yaml").read_text(encoding="utf-8"))


def of_kind(kind: str, among: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [document for document in among if document["kind"] == kind]
    return found


def templates(among: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the pod templates: that of the head, then those of the workers."""
    cluster = of_kind("RayService", among)["spec"]["rayClusterConfig"]
    yield cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"]["initContainers"], *template["spec"]["containers"]]


def served(among: list[dict[str, Any]]) -> dict[str, Any]:
    return yaml.safe_load(of_kind("RayService", among)["spec"]["serveConfigV2"])


@pytest.mark.slow
def test_the_chart_renders_its_golden_files(case: str) -> None:
    golden = (GOLDEN / f"{case}.yaml").read_text(encoding="utf-8")
    assert rendered(values_of(case)) == golden, "refresh it: python -m tests.deploy.chart"


@pytest.mark.slow
def test_every_document_fits_the_schemas_of_kubernetes(golden: list[dict[str, Any]]) -> None:
    service = of_kind("RayService", golden)
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(service)] == []
    pods = [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates(golden)]
    serving = {"apiVersion": "v1", "kind": "Service", **service["spec"]["serveService"]}
    known = [document for document in golden if document["kind"] not in ("RayService", "ServiceMonitor")]
    assert len(known) >= 3
    for document in (*known, *pods, serving):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_served_configuration_is_that_of_one_corpus_with_what_a_cluster_needs() -> None:
    own = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    made = served(documents((GOLDEN / "default.yaml").read_text(encoding="utf-8")))
    ServeDeploySchema.model_validate(made)
    args, expected = made["applications"][0]["args"], own["applications"][0]["args"]
    parse(args)
    assert made["proxy_location"] == "EveryNode"
    assert made["http_options"] == {"host": "0.0.0.0", "port": 8000}
    # the routers of a warm start are files, and the pods share none
    left_out = {"warm_start"}
    assert {name: args[name] for name in expected if name not in left_out} == {
        name: value for name, value in expected.items() if name not in left_out
    }
    assert args.keys() - expected.keys() == {"log_url", "keys", "hosts"}
    assert args.keys() & left_out == set()


def test_with_a_shared_home_the_service_starts_warm() -> None:
    made = served(documents((GOLDEN / "full.yaml").read_text(encoding="utf-8")))
    ServeDeploySchema.model_validate(made)
    args = made["applications"][0]["args"]
    assert parse(args).warm_start is not None
    assert args["hosts"][-2:] == ["armwise.internal", "armwise.example.com"]
    replicas = {one["name"]: one for one in made["applications"][0]["deployments"]}
    assert replicas["Generator"].keys() == {"name", "num_replicas", "ray_actor_options"}


def test_what_is_built_before_the_start_is_built_for_what_is_served(golden: list[dict[str, Any]]) -> None:
    built = of_kind("ConfigMap", golden)["data"]["serve_config.yaml"]
    assert yaml.safe_load(built) == served(golden)


@pytest.mark.slow
def test_a_model_at_an_address_has_no_deployment() -> None:
    there = {"engine": "openai", "base_url": "https://models.internal/v1", "model": "m"}
    here = {"engine": "embedded"}

    def deployed(config: dict[str, Any], **more: Any) -> set[str]:
        values = {**values_of("default"), "config": config, "deployments": more}
        made = served(documents(rendered(values)))["applications"][0]["deployments"]
        return {one["name"] for one in made}

    assert deployed({"llm": there}) == {"Ingress"}
    assert deployed({"llm": here}) == {"Ingress", "Generator"}
    assert deployed({"llm": there, "llms": {"small": {}}}, **{"Generator-small": {}}) == {
        *("Ingress", "Generator-small"),
    }
    with pytest.raises(ChartError, match=r"deployments\.Generator-far: there is no such deployment"):
        deployed({"llm": here, "llms": {"far": there}}, **{"Generator-far": {}})


@pytest.mark.slow
def test_another_configuration_is_served_by_another_cluster_and_another_scale_by_the_same() -> None:
    def digest(changed: dict[str, Any]) -> str:
        head = next(templates(documents(rendered({**values_of("default"), **changed}))))
        return str(head["metadata"]["annotations"]["checksum/args"])

    as_it_is = digest({})
    assert digest({"deployments": {"Ingress": {"num_replicas": 3}}}) == as_it_is
    assert digest({"config": {"floor": 0.02}}) != as_it_is


def test_no_container_runs_as_root_or_writes_to_its_root(golden: list[dict[str, Any]]) -> None:
    assert len([*templates(golden)]) >= 2, "a head and workers"
    assert all([*containers(template)] for template in templates(golden))
    for template in templates(golden):
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] == 10001
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, container["name"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert {"/tmp", "/var/lib/armwise"} <= written
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_a_pods_token_for_kubernetes_is_where_the_autoscaler_is(golden: list[dict[str, Any]]) -> None:
    head, *workers = (template["spec"]["automountServiceAccountToken"] for template in templates(golden))
    assert head is True
    assert {*workers} == {False}


def test_secrets_come_from_secrets(golden: list[dict[str, Any]]) -> None:
    for template in templates(golden):
        for container in containers(template):
            by_name = {entry["name"]: entry for entry in container["env"]}
            for name in ("ARMWISE_API_KEY", "PGPASSWORD"):
                assert by_name[name]["valueFrom"].keys() == {"secretKeyRef"}, name


def test_readiness_asks_a_route_and_liveness_does_not(golden: list[dict[str, Any]]) -> None:
    head, *workers = (template["spec"]["containers"][0] for template in templates(golden))
    for container in (head, *workers):
        assert container["livenessProbe"]["httpGet"]["port"] == 52365  # the agent of Ray
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["serve"] == 8000
    assert workers
    for worker in workers:
        asked = worker["readinessProbe"]["httpGet"]
        assert asked["port"] == 8000
        assert ROUTES["GET", asked["path"]] is OPEN


def test_only_the_port_of_clients_is_open_to_others(golden: list[dict[str, Any]]) -> None:
    policy = of_kind("NetworkPolicy", golden)["spec"]
    selected = policy["podSelector"]["matchLabels"]
    for template in templates(golden):
        assert selected.items() <= template["metadata"]["labels"].items()
    inside, operator, clients = policy["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": selected}}]}
    assert [port["port"] for port in operator["ports"]] == [8265, 52365, 8000]
    assert [peer["podSelector"]["matchLabels"] for peer in operator["from"]] == [
        {"app.kubernetes.io/name": "kuberay-operator"}
    ]
    assert clients["ports"] == [{"protocol": "TCP", "port": 8000}]


def test_a_disruption_budget_counts_workers_alone(golden: list[dict[str, Any]]) -> None:
    budget = of_kind("PodDisruptionBudget", golden)["spec"]
    # a share, or maxUnavailable, needs an owner with a scale, which a RayCluster has not
    assert isinstance(budget["minAvailable"], int)
    head, *workers = (template["metadata"]["labels"] for template in templates(golden))
    chosen = budget["selector"]["matchLabels"].items()
    assert not chosen <= head.items()
    assert [chosen <= worker.items() for worker in workers] == [True] * len(workers) != []


def test_what_is_monitored_and_reached_from_outside_is_the_service_of_the_workers() -> None:
    full = documents((GOLDEN / "full.yaml").read_text(encoding="utf-8"))
    serving = of_kind("RayService", full)["spec"]["serveService"]
    monitor = of_kind("ServiceMonitor", full)["spec"]
    assert monitor["selector"]["matchLabels"].items() <= serving["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    (port,) = serving["spec"]["ports"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    assert endpoint["authorization"] == {"credentials": {"name": "armwise-metrics", "key": "api-key"}}
    (rule,) = of_kind("Ingress", full)["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": serving["metadata"]["name"], "port": {"name": port["name"]}}


@pytest.mark.slow
def test_the_alerts_on_kubernetes_are_those_of_prometheus() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    made = documents(rendered({**values_of("default"), "prometheusRule": {"enabled": True}}))
    assert of_kind("PrometheusRule", made)["spec"] == alerts


@pytest.mark.slow
def test_an_image_is_pinned_by_its_digest_unless_a_group_has_another_image() -> None:
    digest = f"sha256:{'0' * 64}"
    pinned = {**values_of("full"), "image": {"repository": "r/armwise", "tag": "1", "digest": digest}}
    images = {
        template["spec"]["containers"][0]["image"] for template in templates(documents(rendered(pinned)))
    }
    assert images == {f"r/armwise@{digest}", "r/armwise:0.1.0-gpu"}


def test_the_chart_knows_the_keys_of_the_configuration() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = schema["properties"]["config"]["propertyNames"]["enum"]
    assert known == sorted(AppConfig.model_fields)


@pytest.mark.slow
def test_a_long_name_is_cut_to_what_kuberay_takes() -> None:
    made = documents(rendered(values_of("default"), "r" + "a" * 52))
    assert len(of_kind("RayService", made)["metadata"]["name"]) <= 47
    assert len(of_kind("RayService", made)["spec"]["serveService"]["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"postgresql": {"existingSecret": "db"}}, "postgresql.host: name the server of the log"),
        ({"auth": {}}, "auth.existingSecret: name the secret of the first key"),
        ({"replicaCount": 3}, "additional properties 'replicaCount' not allowed"),
        ({"config": {"log_url": "sqlite:////tmp/x"}}, "at '/config'"),
        ({"postgresql": {"host": "db/x?sslmode=disable", "existingSecret": "db"}}, "at '/postgresql/host'"),
        ({"upgradeStrategy": "Recreate"}, "'NewCluster', 'None'"),
        ({"workers": []}, "at '/workers'"),
        ({"config": {"polcy": {}}}, "'polcy'"),
        ({"deployments": {"Ingres": {}}}, "deployments.Ingres: there is no such deployment"),
        ({"deployments": {"Embedder-e5": {}}}, "there are: Ingress, Learner"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"prometheusRule": {"documentation": "x\n"}}, "at '/prometheusRule/documentation'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartError) as raised:
        rendered({**values_of("default"), **changed})
    assert message in str(raised.value)


def test_what_a_value_holds_stays_a_value() -> None:
    changed = {
        "podAnnotations": {"note": "x\nspec: {hostNetwork: true}"},
        "hosts": ['"]\nproxy_location: Disabled'],
    }
    made = documents(rendered({**values_of("default"), **changed}))
    assert served(made)["proxy_location"] == "EveryNode"
    assert served(made)["applications"][0]["args"]["hosts"][-1] == changed["hosts"][0]
    for template in templates(made):
        assert "hostNetwork" not in template["spec"]
