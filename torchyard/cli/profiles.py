"""`torchyard profiles`: all profiles, the file of one, and the launchers."""

from torchyard.cli.documents import LauncherEntry, ProfileEntry, ProfilesDocument, print_document
from torchyard.cli.exit_codes import ExitCode
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.launchers import registry
from torchyard.loading.profile import list_profiles, load_profile, resolve_file
from torchyard.model.errors import ProfileError


def show_profiles(*, as_json: bool) -> int:
    """Print each profile with its description, or why it cannot be loaded."""
    entries: list[ProfileEntry] = []
    for name, path in list_profiles().items():
        try:
            entries.append(ProfileEntry(name=name, path=str(path), about=load_profile(str(path)).about))
        except ProfileError as error:
            entries.append(ProfileEntry(name=name, path=str(path), about="", problem=str(error)))
    if as_json:
        print_document(ProfilesDocument(profiles=tuple(entries)))
        return ExitCode.SUCCESS
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(f"{entry.name:<{width}}  {f'(does not load: {entry.problem})' if entry.problem else entry.about}")
    return ExitCode.SUCCESS


def show_file(name: str, *, as_json: bool) -> int:
    """Print the file of a profile, or of `hardware/NAME`. ProfileError if there is none."""
    path = resolve_file(name)
    text = path.read_text(encoding="utf-8")
    if as_json:
        print_document(ProfilesDocument(profiles=(ProfileEntry(name=name, path=str(path), text=text),)))
    else:
        print(text, end="")
    return ExitCode.SUCCESS


def show_launchers(*, as_json: bool) -> int:
    """Print each launcher: its name, the package that it comes from, and what it is, or why it cannot be used."""
    launchers = registry.describe_launchers()
    if as_json:
        entries: list[LauncherEntry] = []
        for launcher in launchers:
            entries.append(
                LauncherEntry(
                    name=launcher.name,
                    package=launcher.origin,
                    description=launcher.description,
                    problem=launcher.problem or "",
                )
            )
        print_document(ProfilesDocument(launchers=tuple(entries)))
        return ExitCode.SUCCESS
    name_width = max(len(launcher.name) for launcher in launchers)
    origin_width = max(len(launcher.origin) for launcher in launchers)
    for launcher in launchers:
        text = launcher.description if launcher.problem is None else f"(cannot be used: {launcher.problem})"
        line = f"{launcher.name:<{name_width}}  {launcher.origin:<{origin_width}}  {single_line(text)}"
        print(strip_control_codes(line))
    return ExitCode.SUCCESS
