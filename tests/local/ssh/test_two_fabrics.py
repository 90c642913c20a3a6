"""A benchmark of two shaped networks between two hosts that ssh reaches, compared with iperf3."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.benchmark import benchmark
from tests.conftest import Write
from tests.processes import sshd
from tests.processes.sshd import Hosts, run_ip
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_run_folders, runs_folder

SKIP_REASON = sshd.find_obstacle() or ("" if shutil.which("tc") else "no tc: apt-get install -y iproute2")
pytestmark = [pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON), pytest.mark.usefixtures("api")]
RATES_MBIT = {"eth7": 200, "eth8": 50}  # more, and the processors of a loaded machine would be the limit
BITS_PER_GB = 8e9
SHAPE = """\
about: two hosts with two networks
source: the test
match: {}
gpus: {resource: nvidia.com/gpu, per_node: 1}
line_rate: 0.025
fabrics:
  fast: {about: 200 Mb/s, env: {GLOO_SOCKET_IFNAME: eth7}, expect: {transport: socket}}
  slow: {about: 50 Mb/s, env: {GLOO_SOCKET_IFNAME: eth8}, expect: {transport: socket}}
"""


@pytest.fixture
def host_a_addresses(hosts: Hosts) -> Iterator[dict[str, str]]:
    """Add a second network between the hosts, and shape both; yields host-a's address by the name of the link."""
    second_network = f"{hosts.network.rpartition('.')[0]}.78"
    pids = {name: hosts.get_prefix(name)[2] for name in hosts.addresses}
    run_ip(f"link add eth8 netns {pids['host-a']} type veth peer name eth8 netns {pids['host-b']}")
    for number, pid in enumerate(pids.values(), 1):
        run_ip(f"address add {second_network}.{number}/24 dev eth8", "link set eth8 up", namespace_pid=pid)
    for name in pids:
        for link, mbit in RATES_MBIT.items():
            tc_command = f"tc qdisc replace dev {link} root tbf rate {mbit}mbit burst 64kb latency 200ms"
            subprocess.run([*hosts.get_prefix(name), *tc_command.split()], check=True)
    yield {"eth7": hosts.addresses["host-a"], "eth8": f"{second_network}.1"}
    for name in pids:
        subprocess.run([*hosts.get_prefix(name), "tc", "qdisc", "del", "dev", "eth7", "root"], check=True)
    run_ip("link delete eth8", namespace_pid=pids["host-a"])


def _measure_link(hosts: Hosts, address: str) -> float:
    """The bandwidth from host-b to this address of host-a that iperf3 measures, in GB/s."""
    with subprocess.Popen([*hosts.get_prefix("host-a"), "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL):
        iperf_client = [*hosts.get_prefix("host-b"), "iperf3", "-c", address, "-t", "3", "-O", "1", "-J"]
        wait_until(lambda: _is_listening(hosts))
        result = json.loads(subprocess.run(iperf_client, capture_output=True, text=True, check=True).stdout)
    return float(result["end"]["sum_received"]["bits_per_second"]) / BITS_PER_GB


def _is_listening(hosts: Hosts) -> bool:
    completed = subprocess.run([*hosts.get_prefix("host-a"), "ss", "-ltn"], capture_output=True, text=True, check=True)
    return ":5201" in completed.stdout


def test_each_network_is_measured_at_its_rate(hosts: Hosts, host_a_addresses: dict[str, str], write: Write) -> None:
    """Each fabric's variables select its interface, and the benchmark measures the shaped rate, as iperf3 does."""
    shape_path = Path(os.environ["TORCHYARD_RUNS"]).parent / "hardware" / "lab" / "pair.yaml"
    shape_path.parent.mkdir(parents=True)
    shape_path.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(shape_path.parent.parent.parent)
    host_settings = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
    path = write(
        program=str(ROOT / "programs" / "allreduce.py"),
        args=["--sizes=4M", "--trials=5", "--warmups=2"],
        nodes=2,
        metrics="json-lines",
        options={"hosts": host_settings, "python": sys.executable},
        hardware="lab/pair",
        fabric="fast",
    )
    state = benchmark(str(path), ["fast", "slow"], return_state=True)
    assert state.is_completed(), state.message
    (table,) = (runs_folder() / "benchmarks").glob("*/table.txt")
    print(table.read_text())
    for (_, mbit), busbw in zip(RATES_MBIT.items(), re.findall(r"([\d.]+) GB/s", str(state.message)), strict=True):
        assert 0.7 < float(busbw) / (mbit / 8e3) < 1.05
    if shutil.which("iperf3"):
        iperf_busbw = {link: _measure_link(hosts, address) for link, address in host_a_addresses.items()}
        print({link: f"{rate:.4g} GB/s by iperf3" for link, rate in iperf_busbw.items()})
        for link, mbit in RATES_MBIT.items():
            assert 0.8 < iperf_busbw[link] / (mbit / 8e3) < 1.05
    reports = [folder.report() for folder in list_run_folders()]
    assert [report.leftovers for report in reports if report] == [(), ()]
    assert hosts.list_leftovers() == []
