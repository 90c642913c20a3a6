"""What a flow run is called and tagged in Prefect's lists."""

import coolname
import pytest

from tests.reports import short_report
from torchyard.loading.profile import load_profile
from torchyard.tasks.flow_run.names import list_tags, name_run, tag_end

RUN = "01a2b3c4-0000-7000-8000-0000a1b2c3d4"


def test_made_up_name_becomes_the_profiles() -> None:
    """A name that Prefect made up is replaced by profile, size and the end of the run's id."""
    for given in (
        "sigma4-adhil",
        "mu4-kavis-void",
        "omicron-hotta-reach",
        "xi7-ardana-ring",
        "",
        *(coolname.generate_slug(2) for _ in range(50)),
    ):
        assert name_run(load_profile("yolov5-volcano"), RUN, given) == "yolov5-volcano 2x1 a1b2c3d4", given


@pytest.mark.parametrize("given", ["night-before-release", "baseline", "sgd vs adam", "lr-0.1", "train-resnet"])
def test_name_that_a_user_gave_stays(given: str) -> None:
    """A run that was named by hand keeps its name."""
    assert name_run(load_profile("yolov5-volcano"), RUN, given) == given


def test_tags_say_where_a_run_is_and_how_it_ended() -> None:
    """Launcher, hardware and fabric are added once, and how an earlier try of the run ended is removed."""
    tags = list_tags(load_profile("yolov5-volcano"), ["mine", "volcano", "end: oom-pod"])
    assert tags == ("mine", "volcano", "oke/bm-gpu-b4-8", "host")
    assert tag_end(short_report()) == "end: succeeded"
