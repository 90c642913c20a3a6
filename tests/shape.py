"""Prints the size of the code's modules and functions beside its targets, which tests/unit/test_layout.py enforces."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for name in ("flows", "tasks", "torchyard", "programs", "scripts") for path in (ROOT / name).rglob("*.py")
)


def bodies() -> list[tuple[int, str]]:
    """The number of lines in every function's body, without its docstring, and where it is."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                found.append((lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return sorted(found)


def modules() -> list[tuple[int, str]]:
    return sorted((len(path.read_text().splitlines()), str(path.relative_to(ROOT))) for path in SOURCES)


def p90(values: list[tuple[int, str]]) -> int:
    return values[int(0.9 * len(values))][0]


if __name__ == "__main__":
    median = modules()[len(modules()) // 2][0]
    print(f"modules  {len(modules())}, median {median} (<= 120), longest {modules()[-1]} (<= 300)")
    print(f"bodies   {len(bodies())}, p90 {p90(bodies())} (<= 20), longest {bodies()[-1]} (<= 40)")
