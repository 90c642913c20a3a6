"""The files of a folder that a job gets as its code: those that git does not ignore, whether git tracks them or not."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.code.ignore_rules import IgnoreRule, find_verdict, parse_rules

_SKIPPED_NAMES = frozenset({".git", "__pycache__", ".venv", "node_modules"})  # in every folder
_MAX_FILES = 10_000
_MAX_BYTES = 100 * 2**20  # of all files
_MAX_NAMED = 3  # files or folders in a message


class Listing(NamedTuple):
    """The files of a folder.

    names: relative to the folder, in order; links are among them.
    problems: why the folder cannot be packed, as clauses; empty if it can.
    """

    names: list[str]
    problems: list[str]


class _RuleFile(NamedTuple):
    """The rules of one .gitignore, which are relative to its folder."""

    folder: str
    rules: list[IgnoreRule]


def list_files(folder: Path, exclude: Sequence[str], skipped_folder: Path) -> Listing:
    """List the files of a folder. OSError if a part of it cannot be read.

    exclude: rules that take precedence over those of the .gitignore files; `!` adds a file that these ignore.
    skipped_folder: is left out, although no rule names it: the folder of all runs.
    """
    walker = _Walker(folder, exclude, skipped_folder)
    rule_files = [*_read_outer_rules(folder)]
    names: list[str] = []
    problems: list[str] = []
    sizes: dict[str, int] = {}
    for entry in walker.walk(str(folder), rule_files):
        name = os.path.relpath(entry.path, folder)
        names.append(name)
        if len(names) > _MAX_FILES:
            return Listing([], [_describe_excess(names)])
        if entry.is_symlink():
            problem = _find_link_fault(folder, name)
            if problem:
                problems.append(problem)
        elif not entry.is_file():
            problems.append(f"{name} is not a regular file: exclude it")
        else:
            sizes[name] = entry.stat().st_size
    if sum(sizes.values()) > _MAX_BYTES:
        problems.append(_describe_size(sizes))
    if not names:
        problems.append("it has no files: git's rules, or those of `exclude`, ignore all of them")
    return Listing(sorted(names), problems)


class _Walker:
    """Walks a folder top-down, as git does: what is in an ignored folder cannot be added by a rule."""

    def __init__(self, folder: Path, exclude: Sequence[str], skipped_folder: Path) -> None:
        self._own_rules = _RuleFile(str(folder), parse_rules(exclude))
        self._skipped_path = os.path.realpath(skipped_folder)

    def walk(self, folder: str, rule_files: list[_RuleFile]) -> Iterator["os.DirEntry[str]"]:
        """Yield the files and links in a folder and below it. `rule_files`: of the folders above, the outermost first.

        OSError if a folder or a .gitignore cannot be read.
        """
        own_rules = _read_rules(f"{folder}/.gitignore", folder)
        if own_rules:
            rule_files = [*rule_files, own_rules]
        with os.scandir(folder) as entries:
            sorted_entries = sorted(entries, key=lambda entry: entry.name)
        for entry in sorted_entries:
            if entry.name in _SKIPPED_NAMES or self._is_ignored(entry, rule_files):
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield entry
            elif os.path.realpath(entry.path) != self._skipped_path:
                yield from self.walk(entry.path, rule_files)

    def _is_ignored(self, entry: "os.DirEntry[str]", rule_files: Sequence[_RuleFile]) -> bool:
        """Whether an entry is left out: the innermost file with a rule for it decides, and in it the last rule."""
        is_folder = entry.is_dir(follow_symlinks=False)
        for rule_file in (self._own_rules, *reversed(rule_files)):
            path = os.path.relpath(entry.path, rule_file.folder)
            is_ignored = find_verdict(rule_file.rules, path, is_folder=is_folder)
            if is_ignored is not None:
                return is_ignored
        return False


def _read_outer_rules(folder: Path) -> Iterator[_RuleFile]:
    """The rules that the repository around a folder has for it, the outermost first; none outside of a repository.

    OSError if it cannot be read whether there is a repository, or its rules.
    """
    for root in (folder, *folder.parents):
        if _read_mode(str(root / ".git")) is not None:
            break
    else:
        return
    for path, rules_folder in (
        (root / ".git" / "info" / "exclude", root),
        *((parent / ".gitignore", parent) for parent in reversed(folder.parents) if parent.is_relative_to(root)),
    ):
        rules = _read_rules(str(path), str(rules_folder))
        if rules:
            yield rules


def _read_rules(path: str, folder: str) -> _RuleFile | None:
    """The rules of a file, relative to `folder`; None if there is no such file. As git, it does not follow a link.

    OSError if it cannot be read.
    """
    mode = _read_mode(path)
    if mode is None or not stat.S_ISREG(mode):
        return None
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
    return _RuleFile(folder, parse_rules(lines))


def _read_mode(path: str) -> int | None:
    """The mode of a file, a folder or a link; None if there is none. OSError if that cannot be read."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):  # in a worktree `.git` is a file
        return None


def _find_link_fault(folder: Path, name: str) -> str | None:
    """Why a link cannot be packed, as a clause; None if it leads to a place in the folder."""
    target = os.readlink(folder / name)
    root = os.path.realpath(folder)
    resolved = os.path.realpath(folder / name)
    if os.path.isabs(target) or not f"{resolved}/".startswith(f"{root}/"):
        return f"{name} is a link to {target}, which the job does not have: exclude it, or make it a file"
    return None


def _describe_excess(names: Sequence[str]) -> str:
    """Why so many files are refused, and where most of them are."""
    counts: dict[str, int] = {}
    for name in names:
        top, slash, _ = name.partition("/")
        counts[top + slash] = counts.get(top + slash, 0) + 1
    largest = sorted(counts, key=lambda top: -counts[top])[:_MAX_NAMED]
    folders_text = ", ".join(f"{counts[top]:,} in {top}" for top in largest if top.endswith("/"))
    location = folders_text or "in the folder itself"
    return f"it has more than {_MAX_FILES:,} files ({location}): exclude what is not code"


def _describe_size(sizes: dict[str, int]) -> str:
    """Why so large files are refused, and which are the largest."""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_NAMED]
    names_text = ", ".join(f"{name} with {sizes[name]:,}" for name in largest)
    total_bytes = sum(sizes.values())
    return (
        f"its files have {total_bytes:,} bytes, the limit is {_MAX_BYTES:,} ({names_text}): exclude what is not code, "
        "and mount data"
    )
