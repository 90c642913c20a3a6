"""`make mutate`: changes one expression or statement of the changed lines at a time, and prints what no test notices.

    python -m tests.tools.mutate [--since REF | --all] [--sample N] [--jobs N] [--only TEXT ...] [PATH ...]

PATH is a file or folder of the code; the default is torchyard/{model,diagnosis,cluster,run}. Only lines that differ
from REF are mutated, by default those since the merge base with origin/main. Each mutation runs in a copy of the
working tree: first the module's own test files, then a few others that import it. A mutation that all of them pass is
a survivor: either it changes nothing that matters (an equivalent mutation), or a test is missing.
"""

import ast
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("torchyard/model", "torchyard/diagnosis", "torchyard/cluster", "torchyard/run")
_MAX_IMPORTERS = 4  # test files besides the module's own: some modules are imported by a hundred
_MIN_LIMIT_S = 60.0  # of one run of the tests; a mutation may make a loop endless
_LIMIT_FACTOR = 4.0  # times the duration of the same tests without a mutation
_ALL_LINES = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's empty tree: everything was added after it
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutation(NamedTuple):
    """One change: the bytes from `start` to `end` of the file become `replacement`. `path` is relative to ROOT."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    replacement: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]


class Verdict(NamedTuple):
    """What the tests made of a mutation; `detail` is the diff of a survivor, or the reason of an error."""

    mutation: Mutation
    result: Literal["noticed", "timed out", "survived", "not played"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.result:<10} {self.mutation}" + (f"\n{self.detail}" if self.detail else "")


# --- the mutations of a file


def list_mutations(path: str, source: bytes, lines: set[int]) -> list[Mutation]:
    """The mutations of a file that start at one of these lines, in the order of their position.

    Only the bodies of functions are mutated: the constants of a module are mostly limits that no test should state.
    """
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    mutations = []
    for node in _walk_functions(ast.parse(source)):
        if node.lineno not in lines:
            continue
        for kind, replacement in _mutate_node(node):
            start = offsets[node.lineno - 1] + node.col_offset
            end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            mutations.append(Mutation(path, node.lineno, kind, start, end, replacement))
    return sorted(mutations, key=lambda mutation: (mutation.start, mutation.kind, mutation.replacement))


def _walk_functions(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """The expressions and statements of all function bodies, without annotations and parts of f-strings."""
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, is_inside = pending.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        if is_inside and isinstance(node, ast.expr | ast.stmt):
            yield node
        children: list[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = list(node.body)
            is_inside = True
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value else []
        pending += [(child, is_inside) for child in children]


def _mutate_node(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Each mutation of a node itself: its kind, and the text that replaces the node."""
    if isinstance(node, ast.expr):
        yield from _mutate_expression(node)
    elif isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield "negation", _negate_test(node)
    elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield "return None", "return None"
    elif _is_removable(node):
        yield "removed statement", "pass"


def _mutate_expression(node: ast.expr) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator]):
            flipped = ast.Compare(node.left, [_FLIPPED[type(operator)]()], node.comparators)
            yield "comparison", f"({ast.unparse(flipped)})"
        case ast.BoolOp():
            opposite = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", f"({ast.unparse(ast.BoolOp(opposite, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "negation", f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", str(value + 1)
        case _:
            pass


def _is_removable(node: ast.stmt) -> bool:
    """Whether the code remains valid without this statement; the log and `assert_never` do not count."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return not ast.unparse(node).startswith(("get_log()", "assert_never("))
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _negate_test(node: ast.If | ast.While) -> str:
    """The statement with its condition negated, at the same indentation."""
    negated = ast.UnaryOp(ast.Not(), node.test)
    copied: ast.stmt = ast.If(negated, node.body, node.orelse)
    if isinstance(node, ast.While):
        copied = ast.While(negated, node.body, node.orelse)
    text = ast.unparse(ast.fix_missing_locations(copied))
    return text.replace("\n", "\n" + " " * node.col_offset)


def list_changed_lines(ref: str, path: str) -> set[int]:
    """The lines of a tracked file that differ from a commit, committed or not."""
    diff = _run_git("diff", "--unified=0", ref, "--", path)
    lines: set[int] = set()
    for match in _HUNK.finditer(diff):
        first = int(match[1])
        lines.update(range(first, first + int(match[2] or 1)))
    return lines


# --- the tests of a module


def find_tests(path: str) -> list[list[str]]:
    """The test files of a module, and at most `_MAX_IMPORTERS` others that import it; each list is not empty.

    Importers of the same folder come first. Paths are relative to ROOT.
    """
    module = Path(path).with_suffix("")
    own_folder = ROOT / "tests" / "unit" / module.parent.relative_to("torchyard")
    own = [file for file in sorted(own_folder.glob("test_*.py")) if f"{file.stem}_".startswith(f"test_{module.name}_")]
    package = ".".join(module.parent.parts)
    pattern = re.compile(rf"from {package}\.{module.name} import|from {package} import .*\b{module.name}\b")
    files = sorted((ROOT / "tests" / "unit").rglob("test_*.py"), key=lambda file: (file.parent != own_folder, file))
    importers = [file for file in files if file not in own and pattern.search(file.read_text(encoding="utf-8"))]
    return [group for group in (_make_relative(own), _make_relative(importers[:_MAX_IMPORTERS])) if group]


def _make_relative(files: Sequence[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


class Suite:
    """Some test files in a copy of the working tree, and how long they may run.

    They first run without a mutation: that shows whether they pass, and gives the limit for a mutation that makes a
    loop endless.
    """

    def __init__(self, root: Path, files: Sequence[str]) -> None:
        self.root = root
        self.files = files
        self._limit_s: float | None = None

    def notices(self, mutation: Mutation) -> bool:
        """Whether a test fails with this mutation. TimeoutExpired if they do not end.

        RuntimeError if a test fails without the mutation.
        """
        if self._limit_s is None:
            started_at = time.monotonic()
            if not self._run(None):
                raise RuntimeError(f"these tests fail without a mutation: {' '.join(self.files)}")
            self._limit_s = max(_MIN_LIMIT_S, _LIMIT_FACTOR * (time.monotonic() - started_at))
        file = self.root / mutation.path
        source = file.read_bytes()
        file.write_bytes(mutation.apply(source))
        try:
            return not self._run(self._limit_s)
        finally:
            file.write_bytes(source)

    def _run(self, limit_s: float | None) -> bool:
        """Run the tests until the first failure; return whether all pass."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.files]
        env = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# --- the run


class MutationMatrix(Matrix[Mutation, Verdict]):
    """Plays mutations, each lane in its own copy of the working tree; a wave is the mutations of one module."""

    def __init__(self, folder: Path, total: int) -> None:
        super().__init__(total)
        self.folder = folder

    def play_wave(self, lane: int, wave: tuple[Mutation, ...]) -> None:
        root = self.folder / str(lane)
        if not root.exists():
            copy_working_tree(root)
        suites = [Suite(root, files) for files in find_tests(wave[0].path)]
        for mutation in wave:
            self.run_guarded(mutation, partial(self._play_mutation, mutation, suites))

    def _play_mutation(self, mutation: Mutation, suites: list[Suite]) -> None:
        try:
            is_noticed = any(suite.notices(mutation) for suite in suites)
        except subprocess.TimeoutExpired:
            self.report(Verdict(mutation, "timed out"))
            return
        if is_noticed:
            self.report(Verdict(mutation, "noticed"))
        else:
            source = (ROOT / mutation.path).read_bytes()
            self.report(Verdict(mutation, "survived", format_diff(source, mutation.apply(source))))

    def build_failure(self, cell: Mutation, message: str) -> Verdict:
        return Verdict(cell, "not played", message)


def copy_working_tree(root: Path) -> None:
    """Copy all files that git tracks or does not ignore."""
    for name in _run_git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def format_diff(before: bytes, after: bytes) -> str:
    """The changed lines, each with `-` or `+` before it."""
    diff = difflib.unified_diff(before.decode().splitlines(), after.decode().splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in diff if not line.startswith(("---", "+++", "@@")))


def _run_git(*args: str) -> str:
    completed = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    if completed.returncode:
        sys.exit(f"git {args[0]} failed: {completed.stderr.strip()}; name a commit with --since")
    return completed.stdout


def main(argv: list[str]) -> int:
    parser = build_parser("tests.tools.mutate", __doc__, jobs=1)
    parser.add_argument("paths", nargs="*", default=PATHS, metavar="PATH", help="files or folders of torchyard/")
    parser.add_argument("--since", metavar="REF", help="a commit (default: the merge base with origin/main)")
    parser.add_argument("--all", action="store_true", help="mutate all lines, not only the changed ones")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutations, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    args = parser.parse_args(argv)
    ref = args.since or (_ALL_LINES if args.all else _run_git("merge-base", "HEAD", "origin/main").strip())
    mutations: list[Mutation] = []
    for path in _run_git("ls-files", "--", *args.paths).splitlines():
        if path.endswith(".py"):
            mutations += list_mutations(path, (ROOT / path).read_bytes(), list_changed_lines(ref, path))
    mutations = choose_cells(mutations, args)
    if args.sample is not None and args.sample < len(mutations):
        mutations = sorted(random.Random(args.seed).sample(mutations, args.sample))
    if args.list:
        print("\n".join(str(mutation) for mutation in mutations))
        return 0
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="torchyard-mutate-") as name:
        matrix = MutationMatrix(Path(name), len(mutations))
        matrix.play([tuple(group) for _, group in groupby(mutations, lambda mutation: mutation.path)], args.jobs)
    counts = {result: 0 for result in ("noticed", "timed out", "survived", "not played")}
    for verdict in matrix.results:
        counts[verdict.result] += 1
    survivors = [str(verdict) for verdict in matrix.results if verdict.result == "survived"]
    print("\n".join(["", *survivors, ", ".join(f"{count} {result}" for result, count in counts.items())]))
    return 1 if counts["not played"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
