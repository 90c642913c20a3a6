"""Secrets in the files of a job's code, by the names of the files and by their content.

Everyone who may read the job's objects or its hosts can read its code, so a folder with a secret is refused.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from torchyard.common.secret_shapes import find_shapes

_HARMLESS_NAMES = (".env.example", ".env.sample", ".env.template", ".env.dist")
_SECRET_NAMES = (
    ".env",
    ".env.*",
    ".git-credentials",
    ".htpasswd",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".vault-token",
    ".dockercfg",
    ".dockerconfigjson",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_ecdsa_sk",
    "id_ed25519_sk",
    "kaggle.json",
    "kubeconfig",
    "application_default_credentials.json",
    "*.kubeconfig",
    "*.kdbx",
    "*.keystore",
    "*.jks",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*.ppk",
)
_SECRET_PATHS = (
    ".aws/credentials",
    ".docker/config.json",
    ".kube/config",
    ".config/gh/hosts.yml",
    ".cache/huggingface/token",
    ".huggingface/token",
)
_MAX_SCANNED_BYTES = 2**20  # of one file
_MAX_TEXT_TEST_BYTES = 8000  # as git does, a file with NUL in its first bytes is not text
_ACCEPT_MARK = "gitleaks:allow"  # a comment that this scanner and others accept


def is_secret_name(name: str) -> bool:
    """Whether a file's name, or the end of its path, is one under which programs store secrets."""
    path = PurePosixPath(name)
    if path.name in _HARMLESS_NAMES:
        return False
    if any(fnmatchcase(path.name, pattern) for pattern in _SECRET_NAMES):
        return True
    return any(name == known_path or name.endswith(f"/{known_path}") for known_path in _SECRET_PATHS)


def list_secret_lines(content: bytes) -> Iterator[int]:
    """Yield the number of each line on which a secret begins, recognized by its shape; none for a file without text.

    A line with the comment `gitleaks:allow` is accepted.
    """
    if b"\0" in content[:_MAX_TEXT_TEST_BYTES]:
        return
    text = content[:_MAX_SCANNED_BYTES].decode(errors="replace")
    numbers: set[int] = set()
    for shape in find_shapes(text.lower()):
        for match in shape.pattern.finditer(text):
            start = match.start("secret")
            line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0]
            if _ACCEPT_MARK not in line and not _is_placeholder(match["secret"]):
                numbers.add(text.count("\n", 0, start) + 1)
    yield from sorted(numbers)


# What stands for a value in documentation and templates.
_PLACEHOLDER = re.compile(r"(?i)\*{3}|x{4}|\.\.\.|example|your[-_]|%[sdr(]|[<>{}$(]")
_MAX_PLACEHOLDER_CHARS = 200  # the text of a private key has more


def _is_placeholder(secret: str) -> bool:
    """Whether a value is that of an example, or an expression that a program replaces."""
    return len(secret) <= _MAX_PLACEHOLDER_CHARS and bool(_PLACEHOLDER.search(secret))
