"""The names and tags of flow runs in Prefect's lists."""

import coolname
import pytest

from tests.builders.reports import short_report
from torchyard.loading.profile import load_profile
from torchyard.tasks.flow_run.names import build_tags, format_end_tag, format_run_name

RUN = "01a2b3c4-0000-7000-8000-0000a1b2c3d4"


def test_generated_name_is_replaced_by_the_profiles() -> None:
    """A name that Prefect generated is replaced by the profile, the size and the end of the run's id."""
    for current_name in (
        "theta6",
        "sigma4-adhil",
        "mu4-kavis-void",
        "omicron-hotta-reach",
        "xi7-ardana-ring",
        "xi2-canis-majoris-reach",
        "",
        *(coolname.generate_slug(2) for _ in range(50)),
    ):
        assert format_run_name(load_profile("yolov5-volcano"), RUN, current_name) == "yolov5-volcano 2x1 a1b2c3d4", (
            current_name
        )


@pytest.mark.parametrize("current_name", ["night-before-release", "baseline", "sgd vs adam", "lr-0.1", "train-resnet"])
def test_name_that_a_user_gave_stays(current_name: str) -> None:
    """A run that a user has named keeps its name."""
    assert format_run_name(load_profile("yolov5-volcano"), RUN, current_name) == current_name


def test_tags_show_where_a_run_is_and_how_it_ended() -> None:
    """Launcher, hardware and fabric are added once, and the end tag of an earlier try of the run is removed."""
    tags = build_tags(load_profile("yolov5-volcano"), ["mine", "volcano", "end: oom-pod"])
    assert tags == ("mine", "volcano", "oke/bm-gpu-b4-8", "host")
    assert format_end_tag(short_report()) == "end: succeeded"
