"""Records the options of the torchrun in a wheel: `python -m tests.tools.record_torchrun torch-1.13.1-….whl ...`

The parser is read, not run: an old torch does not start under a new Python. Each version becomes a file in
tests/torchrun/, from which `build_parser` builds a parser that accepts and refuses the same arguments.
"""

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(__file__).resolve().parents[1] / "torchrun"
SOURCE = "torch/distributed/run.py"
SETTINGS = ("action", "nargs", "type", "choices")
SWITCHES = ("check_env", "store_true")  # torch's own action also reads an environment variable


class UnknownArgumentsError(Exception):
    """The arguments with which torchrun would not start."""


class Parser(argparse.ArgumentParser):
    """Raises what torchrun prints before it exits with 2."""

    def error(self, message: str) -> NoReturn:
        raise UnknownArgumentsError(message)


def record_options(wheel: Path) -> str:
    """Record the options of a wheel's torchrun; return its version."""
    version = wheel.name.split("-")[1].partition("+")[0]
    with zipfile.ZipFile(wheel) as archive:
        options = read_options(archive.read(SOURCE).decode())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(json.dumps(options, indent=1) + "\n")
    return version


def read_options(source: str) -> list[dict[str, Any]]:
    """Every argument of the parser: its names, and the settings that define its values."""
    (function,) = (node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "get_args_parser")
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and is_argument(node)]
    options = []
    for call in sorted(calls, key=lambda call: call.lineno):
        option: dict[str, Any] = {"names": [name.value for name in call.args if isinstance(name, ast.Constant)]}
        for keyword in call.keywords:
            if keyword.arg in SETTINGS:
                option[keyword.arg] = read_expression(keyword.value)
        options.append(option)
    return options


def is_argument(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"


def read_expression(value: ast.expr) -> Any:
    """The value of a constant, or the last name of any other expression."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value).rpartition(".")[2]


def load_options(version: str) -> list[dict[str, Any]]:
    """The recorded options with `names` and the settings of argparse that define their values."""
    recorded = json.loads((FOLDER / f"{version}.json").read_text())
    return [{"names": option["names"]} | read_option(option) for option in recorded]


def read_option(option: Mapping[str, Any]) -> dict[str, Any]:
    if option.get("action") in SWITCHES:
        return {"action": "store_true"}
    settings: dict[str, Any] = {}
    if option.get("nargs") == "REMAINDER":
        settings["nargs"] = argparse.REMAINDER
    if option.get("choices"):
        settings["choices"] = option["choices"]
    return settings


def build_parser(version: str) -> Parser:
    """The parser of a recorded torchrun."""
    torchrun_parser = Parser(prog=f"torchrun {version}")
    for option in load_options(version):
        torchrun_parser.add_argument(*option.pop("names"), **option)
    return torchrun_parser


def main(wheels: Sequence[str]) -> None:
    for wheel in wheels:
        print(record_options(Path(wheel)))


if __name__ == "__main__":
    main(sys.argv[1:])
