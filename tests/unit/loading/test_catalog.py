"""Every profile has a deployment and is listed in the guides; docs/profiles.md is a reference page."""

import re

import pytest
import yaml

from tests.conftest import plan_of
from torchyard.common.project_root import ROOT
from torchyard.loading import catalog
from torchyard.loading.overrides import read_overrides
from torchyard.loading.profile import list_profiles, load_profile

GUIDES = (ROOT / "docs" / "guides.md").read_text()
COMMANDS = re.findall(r"^\.venv/bin/torchyard plan (\S+)((?: --set '[^']+')+)$", GUIDES, re.MULTILINE)


def test_every_profile_is_a_deployment() -> None:
    """prefect.yaml has a deployment of `train` for each profile, as the catalog writes it, followed by the sweep."""
    expected = "\n".join(catalog.format_deployments(catalog.load_catalog()))
    message = "prefect.yaml's entries should be (torchyard profiles --as deployments):\n"
    assert f"deployments:\n{expected}\n  - name: lost\n" in (ROOT / "prefect.yaml").read_text(), message + expected


def test_deployment_has_family_launcher_and_rendezvous_as_tags() -> None:
    """The entries are valid YAML for any `about`, and have family, launcher and rendezvous as tags."""
    catalog_entries = catalog.load_catalog()
    entries = yaml.safe_load("train: &train {}\nlist:\n" + "\n".join(catalog.format_deployments(catalog_entries)))[
        "list"
    ]
    assert [entry["description"] for entry in entries] == [profile.about for profile, _ in catalog_entries]
    tags = {entry["name"]: entry["tags"] for entry in entries}
    assert tags["digits-local-etcd"] == ["digits", "baremetal", "etcd-v2"]


def test_guides_list_every_profile() -> None:
    """docs/guides.md names each shipped profile of a guide, and none that does not exist."""
    guide_profiles = set(re.findall(r"`((?:pi|allreduce|interactive|static|fms|mnist|yolov5)-[a-z0-9-]+)`", GUIDES))
    assert guide_profiles == {
        name for name in list_profiles() if "guide 00" in load_profile(name).about
    } | guide_profiles & set(list_profiles())


@pytest.mark.parametrize(("name", "changes"), COMMANDS)
def test_other_rows_of_a_guide_can_be_planned(name: str, changes: str) -> None:
    """A row of a guide that has no profile is another profile with changes, and the page's command can plan it."""
    profile = load_profile(name, read_overrides(re.findall(r"--set '([^']+)'", changes)))
    assert plan_of(profile, ROOT / "runs")


@pytest.mark.parametrize(
    ("shipped_name", "guide_name"), [("user-file", "user_file"), ("user-file-vela", "user_file_vela")]
)
def test_user_files_are_the_guides(shipped_name: str, guide_name: str) -> None:
    """The shipped user files have the same content as the guide's."""
    shipped = yaml.safe_load((ROOT / "profiles" / "values" / f"{shipped_name}.yaml").read_text())
    assert shipped == yaml.safe_load((ROOT / "tests" / "values" / f"{guide_name}.yaml").read_text())


def test_roce_profile_sets_no_variable_that_disables_rdma() -> None:
    """The profile sets no variable of the user file, such as NCCL_IB_DISABLE: it would win over the ConfigMap's."""
    profile = load_profile("fms-vela-gdr")
    assert profile.network
    assert (profile.env.keys() | profile.network.env.keys()) == {"NCCL_TOPO_FILE"}
