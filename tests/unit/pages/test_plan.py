"""The pages of a run that has not started: its plan and its checks."""

from tests.support.markdown import render_html
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.finding import Finding
from torchyard.model.run import Run
from torchyard.pages.plan import render_checks_page, render_plan_page

OK = Finding(where="kind Job", verdict="ok", what="v1alpha1 of Volcano")
FAILED = Finding(where="plugin", verdict="failed", what="no node has nvidia.com/sriov | <b>", remedy="install it")


def test_plan_page_shows_the_job_and_folds_the_plan() -> None:
    """The table has launcher, program, image and deadlines; the complete plan is folded, without secrets."""
    profile = load_profile("yolov5-volcano", {"env": {"API_TOKEN": "hunter2hunter2"}})
    plan = registry.make_plan(profile, Run(id="0" * 8, attempt=1, folder="/runs/x"))
    page = render_plan_page(profile, plan)
    for part in ("volcano", "2 x 1, started by torchrun", "ultralytics/yolov5:v7.0", "/usr/src/app/train.py"):
        assert part in render_html(page)
    table, _, folded = page.partition("<details>")
    assert "run 43200 s" in table
    assert "kind: manifests" in folded
    assert folded.rstrip().endswith("</pre>\n\n</details>")
    assert "hunter2" not in page


def test_plan_page_has_the_digest_of_a_file_and_not_its_content() -> None:
    """Local files are shown by size and digest."""
    profile = load_profile("allreduce-volcano")
    plan = registry.make_plan(profile, Run(id="0" * 8, attempt=1, folder="/runs/x"))
    page = render_plan_page(profile, plan)
    assert "bytes, sha256" in page
    assert "import torch" not in page


def test_checks_page_shows_failed_checks_first() -> None:
    """Failed checks come first, with their remedies; many passed checks are folded."""
    page = render_checks_page([OK, FAILED])
    assert page.index("plugin") < page.index("kind Job")
    assert "install it" in page
    assert r"\<b>" in page
    assert "<details>" not in page
    assert "<details>" in render_checks_page([OK] * 6)
