"""The processes of the control plane: their command lines, certificates and readiness addresses."""

import socket
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.cluster.certificates import (
    CertificatePair,
    create_authority,
    encode_private_key,
    encode_public_key,
    generate_key,
    issue_certificate,
)
from tests.cluster.plane import API_SERVICE, PODS_GATEWAY, SERVICE_NETWORK, Plane

HERE = Path(__file__).resolve().parent
PORT_NAMES = (
    "etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "fake-logs",
    "vc-scheduler", "vc-scheduler-health", "vc-controller-manager", "vc-controller-manager-health",
    "vc-webhook-manager", "vc-webhook-manager-health", "training-operator", "training-operator-health",
    "appwrapper-health", "mcad-health", "jobset", "jobset-health",
)  # fmt: skip
APPWRAPPER_PORT = 9443  # compiled in
POD_NETWORK = "10.40.0.0/16"  # of fake pods


class Operator(NamedTuple):
    """The names that are compiled into an operator: its namespace, its webhook's Service, and its authority."""

    namespace: str
    service: str
    authority: str


OPERATORS = {
    "training-operator": Operator("kubeflow", "training-operator", "training-operator-ca"),
    "appwrapper": Operator("appwrapper-system", "appwrapper-webhook-service", "appwrapper-ca"),
}
# The training operator only checks that this file exists; its server reads the certificate below $TMPDIR.
OPERATOR_CERTIFICATE = Path("/tmp/k8s-webhook-server/serving-certs/tls.crt")
CERTIFICATE_MARKER = "made for a torchyard test cluster\n"


# The webhooks that Volcano's chart enables.
VOLCANO_WEBHOOKS = (
    "/jobs/mutate",
    "/jobs/validate",
    "/podgroups/validate",
    "/queues/mutate",
    "/queues/validate",
    "/hypernodes/validate",
    "/cronjobs/validate",
)


@dataclass(frozen=True)
class Component:
    """A process: its command, its additional environment, and the address that answers 200 when it is ready."""

    name: str
    command: list[str]
    ready_url: str
    environment: dict[str, str] = field(default_factory=dict)


def allocate_ports() -> dict[str, int]:
    """A free port for each name in PORT_NAMES, all different."""
    holders = {name: socket.create_server(("127.0.0.1", 0)) for name in PORT_NAMES}
    ports = {name: holder.getsockname()[1] for name, holder in holders.items()}
    for holder in holders.values():
        holder.close()
    return ports


def allocate_port() -> int:
    """A free port for a process that joins a running cluster."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port: int = holder.getsockname()[1]
        return port


# --- certificates --------------------------------------------------------------------------------------------------


def make_certificates(plane: Plane) -> None:
    """Write every certificate that the processes need to pki/."""
    pki = plane.state_folder / "pki"
    pki.mkdir(parents=True)
    create_authority("torchyard").write(pki / "ca")
    api_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    api_hosts = ["127.0.0.1", PODS_GATEWAY, API_SERVICE, "localhost", socket.gethostname(), *api_names]
    plane.issue_certificate("kube-apiserver", hosts=api_hosts).write(pki / "kube-apiserver")
    plane.issue_certificate("webhook", hosts=["127.0.0.1", "localhost"]).write(pki / "webhook")
    plane.issue_certificate("kubelet-client", groups=["system:masters"]).write(pki / "kubelet-client")
    plane.issue_certificate("admin", groups=["system:masters"]).write(pki / "admin")
    token_key = generate_key()
    CertificatePair(encode_public_key(token_key), encode_private_key(token_key)).write(pki / "tokens")
    write_serving_certificate(plane.state_folder / "tmp" / "jobset", plane.read_certificate("webhook"))
    for name, operator in OPERATORS.items():
        issuer = create_authority(operator.authority, "rsa").write(pki / f"{name}-ca")
        host = f"{operator.service}.{operator.namespace}.svc"
        server = issue_certificate(issuer, host, hosts=[host, "127.0.0.1"]).write(pki / name)
        write_serving_certificate(plane.state_folder / "tmp" / name, server)


def write_serving_certificate(temp_folder: Path, server: CertificatePair) -> None:
    """Write a certificate where an operator's webhook server reads it: below its TMPDIR."""
    folder = temp_folder / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True)
    (folder / "tls.crt").write_bytes(server.certificate)
    (folder / "tls.key").write_bytes(server.key)


# --- commands ------------------------------------------------------------------------------------------------------


def etcd(plane: Plane) -> Component:
    ports = plane.record["ports"]
    client_url = f"http://127.0.0.1:{ports['etcd']}"
    peer_url = f"http://127.0.0.1:{ports['etcd-peer']}"
    options = [
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        f"--data-dir={plane.state_folder}/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    return Component("etcd", ["etcd", *options], f"{client_url}/health")


def kube_apiserver(plane: Plane) -> Component:
    """The API server. It listens on all addresses, because kubelets in network namespaces call it from there.

    It reaches real kubelets by IP and kwok's by name.
    """
    ports = plane.record["ports"]
    pki = plane.state_folder / "pki"
    options = [
        f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
        "--bind-address=0.0.0.0",
        f"--secure-port={ports['kube-apiserver']}",
        f"--advertise-address={PODS_GATEWAY}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/kube-apiserver.crt",
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalDNS,InternalIP,Hostname",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/tokens.crt",
        f"--service-account-signing-key-file={pki}/tokens.key",
    ]
    # With a lower GOGC half of its work at the start is garbage collection: 70 MiB save 3 s.
    return Component("kube-apiserver", ["kube-apiserver", *options], "", {"GOGC": "100"})


def kube_controller_manager(plane: Plane) -> Component:
    port = plane.record["ports"]["kube-controller-manager"]
    pki = plane.state_folder / "pki"
    options = [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/tokens.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
    ]
    return build_client_component(plane, "kube-controller-manager", options, f"https://127.0.0.1:{port}/healthz")


def kube_scheduler(plane: Plane) -> Component:
    port = plane.record["ports"]["kube-scheduler"]
    options = ["--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false"]
    return build_client_component(plane, "kube-scheduler", options, f"https://127.0.0.1:{port}/healthz")


def kwok(plane: Plane) -> Component:
    """kwok holds node leases: without them its nodes become NotReady every minute, and each pod's delay restarts."""
    ports = plane.record["ports"]
    options = [
        f"--config={HERE}/stages.yaml",
        "--manage-nodes-with-label-selector=type=kwok",
        "--node-lease-duration-seconds=40",
        f"--cidr={POD_NETWORK}",
        f"--server-address=127.0.0.1:{ports['kwok']}",
        f"--node-port={ports['fake-logs']}",
    ]
    return build_client_component(plane, "kwok", options, f"http://127.0.0.1:{ports['kwok']}/healthz")


def fake_logs(plane: Plane) -> Component:
    """The server of fake pods' logs; kwok could serve them too, but its follow never ends."""
    ports = plane.record["ports"]
    arguments = [ports["kube-apiserver"], plane.state_folder / "pki", ports["fake-logs"]]
    command = [sys.executable, str(HERE / "fake_logs.py"), *map(str, arguments)]
    return Component("fake-logs", command, f"https://127.0.0.1:{ports['fake-logs']}/healthz")


def volcano(plane: Plane) -> list[Component]:
    return [vc_webhook_manager(plane), vc_scheduler(plane), vc_controller_manager(plane)]


def vc_webhook_manager(plane: Plane) -> Component:
    ports = plane.record["ports"]
    pki = plane.state_folder / "pki"
    options = [
        "--enabled-admission=" + ",".join(VOLCANO_WEBHOOKS),
        "--listen-address=127.0.0.1",
        f"--port={ports['vc-webhook-manager']}",
        f"--webhook-url=https://127.0.0.1:{ports['vc-webhook-manager']}",
        f"--tls-cert-file={pki}/webhook.crt",
        f"--tls-private-key-file={pki}/webhook.key",
        f"--ca-cert-file={pki}/ca.crt",
    ]
    return build_volcano_component(plane, "vc-webhook-manager", options, "https")


def vc_scheduler(plane: Plane) -> Component:
    address = f"--listen-address=127.0.0.1:{plane.record['ports']['vc-scheduler']}"
    options = [
        address,
        "--leader-elect=false",
        f"--scheduler-conf={HERE}/volcano-scheduler.yaml",
        "--cache-dumper=false",
    ]
    return build_volcano_component(plane, "vc-scheduler", options, "http")


def vc_controller_manager(plane: Plane) -> Component:
    address = f"--listen-address=127.0.0.1:{plane.record['ports']['vc-controller-manager']}"
    return build_volcano_component(plane, "vc-controller-manager", [address, "--leader-elect=false"], "http")


def build_volcano_component(plane: Plane, name: str, options: list[str], scheme: str) -> Component:
    """A program of Volcano, with a separate folder for the socket that sets its log level.

    By default all three programs share one socket under /tmp.
    """
    health = f"127.0.0.1:{plane.record['ports'][name + '-health']}"
    options = [*options, "--enable-healthz=true", f"--healthz-address={health}"]
    component = build_client_component(plane, name, options, f"{scheme}://{health}/healthz")
    return replace(component, environment={"DEBUG_SOCKET_DIR": str(plane.state_folder / "tmp" / name)})


def training_operator(plane: Plane) -> Component:
    ports = plane.record["ports"]
    health = f"127.0.0.1:{ports['training-operator-health']}"
    options = [
        "--enable-scheme=pytorchjob",
        "--gang-scheduler-name=volcano",
        "--metrics-bind-address=0",
        f"--health-probe-bind-address={health}",
        f"--webhook-server-port={ports['training-operator']}",
    ]
    component = build_client_component(plane, "training-operator", options, f"http://{health}/readyz")
    return replace(component, environment={"MY_POD_NAMESPACE": "kubeflow"})


def appwrapper(plane: Plane) -> Component:
    """AppWrapper's controller; its settings are in a ConfigMap (see objects.py)."""
    health = f"http://127.0.0.1:{plane.record['ports']['appwrapper-health']}/readyz"
    return replace(
        build_client_component(plane, "appwrapper", [], health), environment={"NAMESPACE": "appwrapper-system"}
    )


def mcad(plane: Plane) -> Component:
    """The dispatcher that AppWrapper has replaced; it has no webhooks."""
    health = f"127.0.0.1:{plane.record['ports']['mcad-health']}"
    return build_client_component(plane, "mcad", [f"--healthProbeListenAddr={health}"], f"http://{health}/healthz")


def jobset(plane: Plane) -> Component:
    """JobSet's controller; a file holds its settings: the webhooks' address, and no certificate rotation."""
    ports = plane.record["ports"]
    health = f"127.0.0.1:{ports['jobset-health']}"
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports["jobset"]},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    (plane.state_folder / "jobset.yaml").write_text(yaml.safe_dump(settings))
    options = [f"--config={plane.state_folder}/jobset.yaml", "--zap-log-level=info"]
    return build_client_component(plane, "jobset", options, f"http://{health}/readyz")


def build_client_component(plane: Plane, name: str, options: list[str], ready_url: str) -> Component:
    """A client of the API server, with an administrator's kubeconfig in its own name."""
    kubeconfig = plane.write_kubeconfig(plane.state_folder / f"{name}.kubeconfig", name, ["system:masters"])
    return Component(name, [name, f"--kubeconfig={kubeconfig}", *options], ready_url)


def build_controllers(plane: Plane) -> list[Component]:
    """The components that need the API server."""
    kubernetes = [kube_controller_manager(plane), kube_scheduler(plane), kwok(plane), fake_logs(plane)]
    dispatcher = {"appwrapper": appwrapper, "mcad": mcad}[plane.dispatcher](plane)
    return [*volcano(plane), training_operator(plane), dispatcher, jobset(plane), *kubernetes]
