"""Records which options the torchrun of a wheel knows: `python -m tests.record_torchrun torch-1.13.1-….whl ...`

The parser is read, not run: an old torch does not start under a new Python. Each version becomes a file in
tests/torchrun/, from which `parser` builds a parser that accepts and refuses the same arguments.
"""

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(__file__).resolve().parent / "torchrun"
SOURCE = "torch/distributed/run.py"
SAID = ("action", "nargs", "choices")
SWITCHES = ("check_env", "store_true")  # torch's own action also reads an environment variable


class UnknownWordsError(Exception):
    """Why torchrun would not start."""


class Parser(argparse.ArgumentParser):
    """Raises what torchrun prints before it exits with 2."""

    def error(self, message: str) -> NoReturn:
        raise UnknownWordsError(message)


def record(wheel: Path) -> str:
    """Record the options of a wheel's torchrun; return its version."""
    version = wheel.name.split("-")[1].partition("+")[0]
    with zipfile.ZipFile(wheel) as archive:
        options = read_options(archive.read(SOURCE).decode())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(json.dumps(options, indent=1) + "\n")
    return version


def read_options(source: str) -> list[dict[str, Any]]:
    """Every argument of the parser: its names, and the settings that say which values it takes."""
    made = next(each for each in ast.walk(ast.parse(source)) if getattr(each, "name", "") == "get_args_parser")
    calls = [each for each in ast.walk(made) if isinstance(each, ast.Call) and is_argument(each)]
    return [
        {
            "names": [name.value for name in call.args if isinstance(name, ast.Constant)],
            **{
                word.arg: say(word.value)
                for word in call.keywords
                if word.arg in ("action", "nargs", "type", "choices")
            },
        }
        for call in sorted(calls, key=lambda call: call.lineno)
    ]


def is_argument(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"


def say(value: ast.expr) -> Any:
    """The value of a constant, or the last name of any other expression."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value).rpartition(".")[2]


def options(version: str) -> list[dict[str, Any]]:
    """The recorded options as argparse wants them: `names`, and the settings that say which values each takes."""
    recorded = json.loads((FOLDER / f"{version}.json").read_text())
    return [{"names": each["names"], **read_option(each)} for each in recorded]


def read_option(option: Mapping[str, Any]) -> dict[str, Any]:
    if option.get("action") in SWITCHES:
        return {"action": "store_true"}
    many = {"nargs": argparse.REMAINDER} if option.get("nargs") == "REMAINDER" else {}
    return {**many, **({"choices": option["choices"]} if option.get("choices") else {})}


def parser(version: str) -> Parser:
    """The parser of a recorded torchrun."""
    made = Parser(prog=f"torchrun {version}")
    for option in options(version):
        made.add_argument(*option.pop("names"), **option)
    return made


def main(wheels: Sequence[str]) -> None:
    for wheel in wheels:
        print(record(Path(wheel)))


if __name__ == "__main__":
    main(sys.argv[1:])
