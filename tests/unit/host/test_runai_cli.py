"""Run:ai's CLI: its output in any shape."""

from pathlib import Path

import pytest

from torchyard.host.runai_cli import RunaiJob, copy_log, parse_statuses, query_job

JOB = "sample-a1b2c3d4-1"


def build_job(tmp_path: Path, script: str) -> RunaiJob:
    """A job of one pod, whose CLI is a script of the shell."""
    cli = tmp_path / "runai"
    cli.write_text(f"#!/bin/sh\n{script}\n")
    cli.chmod(0o755)
    return RunaiJob([str(tmp_path / "run"), "1", "cli-v2", "mlo", str(cli), JOB])


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ('{"name": "j", "status": "RUNNING", "instances": [{"name": "j-master-0", "status": "PENDING"}]}', "PENDING"),
        ('{"general": {"name": "j", "phase": "Running"}, "pods": [{"podName": "j-master-0", "state": "W"}]}', "W"),
        ('{"Status": {"Phase": "Running"}, "pods": [{"metadata": {"name": "j-master-0"}, "status": "P"}]}', "P"),
        ("NAME: j\nSTATUS: Running\n", None),
        ('STATUS: Running\n{"a": ' + "[" * 100_000 + "}", None),
        ('warning: old\n{"status": {"value": "Running"}}', None),
    ],
)
def test_statuses_are_found_in_any_shape(output: str, status: str | None) -> None:
    """The status of job and pods is found in JSON of several shapes, and that of the job also in plain text."""
    statuses = parse_statuses(output, "j")
    assert (statuses[""].lower(), statuses.get("j-master-0")) == ("running", status)


# --- whether the job exists


@pytest.mark.parametrize(
    ("message", "exists"),
    [
        (f"The job {JOB} does not exist in project mlo. If the job exists in a different project, use -p.", False),
        (f"Error: workload {JOB} was not found", False),
        (f'Error from server (NotFound): pytorchjobs.kubeflow.org "{JOB}" not found', False),
        (f'{{"message": "training \\"{JOB}\\" doesn\'t exist"}}', False),
        (f"Error: could not find training workload with name {JOB}.", False),
        (f"Failed to find the training job {JOB} in namespace runai-mlo", False),
        (f"no such job: {JOB}", False),
        ("Error: workload not found", False),
        ('Error: Get "https://acme.run.ai/api/v1/workloads": lookup acme.run.ai on 10.0.0.2:53: no such host', None),
        ("Error: open /home/u/.runai/authentication.json: no such file or directory", None),
        ('exec: "kubectl": executable file not found in $PATH', None),
        ("/usr/local/bin/runai: 3: exec: /opt/runai/2.19/runai: not found", None),
        ("Error: 404 page not found", None),
        (f"Error: failed to describe workload {JOB}: 404 page not found", None),
        (f'Error: Get "https://acme.run.ai/workloads/{JOB}": 404 Not Found', None),
        (f'Error: cannot read {JOB}: namespaces "runai-mlo" not found', None),
        (f'Error: pods "{JOB}-master-0" not found', None),
        ("error: cluster not found in local config; run runai cluster set", None),
        ("project mlo was not found. Please run 'runai project list'", None),
    ],
)
def test_only_a_message_about_the_job_shows_that_it_is_missing(
    tmp_path: Path, message: str, exists: bool | None
) -> None:
    """A host, a file, a program, a page or a project that is "not found" leaves unknown whether the job exists."""
    (tmp_path / "message").write_text(message)
    for channel in (1, 2):  # v1 prints its errors on stdout
        response = query_job(build_job(tmp_path, f"cat {tmp_path}/message >&{channel}; exit 1"))
        assert (response.exists, response.reason) == (exists, message)
    assert query_job(build_job(tmp_path, f"cat {tmp_path}/message")).exists is None


def test_missing_cli_does_not_show_that_the_job_is_missing(tmp_path: Path) -> None:
    """While the CLI is replaced, its job is neither deleted nor absent, and the reason names the CLI."""
    job = build_job(tmp_path, "true")
    Path(job.cli).unlink()
    response = query_job(job)
    assert (response.exists, response.reason) == (None, f"cannot start {job.cli}: No such file or directory")


# --- logs


def test_line_with_carriage_returns_is_copied_once(tmp_path: Path) -> None:
    """A progress bar or a CRLF line that is already in the copy is not appended again by the next copy."""
    lines = b"2026-11-21T08:00:46.0Z windows\r\n2026-11-21T08:00:47.123Z \r 10%\r 20%\n"
    (tmp_path / "log").write_bytes(lines)
    (pod,) = build_job(tmp_path, f"cat {tmp_path}/log").pods
    for _ in range(3):
        assert copy_log(pod, has_ended=False) is None
    assert Path(pod.copy_path).read_bytes() == lines.replace(b"Z ", b"Z node-0 | ")


def test_copy_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    """A disk that cannot take the log does not end the verb that copies it: it watches and deletes the job."""
    (pod,) = build_job(tmp_path, "true").pods
    (tmp_path / "run").touch()
    assert copy_log(pod, has_ended=True) == f"cannot write {pod.copy_path}: Not a directory"
