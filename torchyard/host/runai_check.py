#!/usr/bin/env python3
"""Check that Run:ai's CLI can submit a job. Standard library only, Python 3.8 or newer.

The launcher starts it on its own machine, which has all scripts of torchyard/host, with the input and output of
facts.py. The settings of a requirement are `cli`, `generation` and `project`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.facts import failed, passed
from torchyard.host.runai_cli import QUERY_TIMEOUT_S, find_error_line, query_cli

Json = Any
_HELP_COMMANDS = {"cli-v1": ["submit-dist", "pytorch", "--help"], "cli-v2": ["training", "pytorch", "submit", "--help"]}
_PROJECT_COMMANDS = {"cli-v1": ["list", "projects"], "cli-v2": ["project", "list"]}


def check_cli(requirement: Json) -> Json:
    """The finding: whether the CLI can submit the job."""
    settings = requirement["settings"]
    subject = "%s on %s" % (settings["cli"], requirement["host"])
    problem, remedy = describe_problem(settings)
    if problem:
        return failed(subject, problem, remedy)
    return passed(subject, "%s, logged in, project %s" % (settings["generation"], settings["project"]))


def describe_problem(settings: Json) -> tuple[str, str]:
    """Why the CLI cannot submit the job, and what to do; both are empty if it can.

    It has to run, be of the right generation, and have a logged-in user with access to the project. Projects that
    cannot be listed are not a problem.
    """
    cli = settings["cli"]
    exit_code, output = query_cli([cli, "version"], timeout_s=QUERY_TIMEOUT_S)
    if exit_code:
        return find_error_line(output), "install Run:ai's CLI, or name it with options.cli"
    generations: list[str] = []
    for name, help_command in sorted(_HELP_COMMANDS.items()):
        exit_code, _ = query_cli([cli] + help_command, timeout_s=QUERY_TIMEOUT_S)
        if exit_code == 0:
            generations.append(name)
    if settings["generation"] not in generations:
        problem = "is not %s; it is: %s" % (settings["generation"], ", ".join(generations) or "unknown")
        return problem, "choose another CLI with options.cli, or the other generation with options.through"
    exit_code, output = query_cli([cli, "whoami"], timeout_s=QUERY_TIMEOUT_S)
    if exit_code:
        return "no user is logged in: %s" % find_error_line(output), "%s login" % cli
    exit_code, output = query_cli([cli] + _PROJECT_COMMANDS[settings["generation"]], timeout_s=QUERY_TIMEOUT_S)
    project = settings["project"]
    if exit_code == 0 and not re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(project), output):
        return "there is no project %s for this user" % project, "correct options.project"
    return "", ""


if __name__ == "__main__":
    requirements = json.load(sys.stdin)["needs"]
    findings = [check_cli(requirement) for requirement in requirements]
    print(json.dumps({"now": time.time(), "findings": findings}))
