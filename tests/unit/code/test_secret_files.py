"""Secrets in code: which names and which lines are refused."""

import pytest

from torchyard.code.secret_files import is_secret_name, list_secret_lines

TOKEN = "hf_" + "a1B2c3D4e5" * 3


@pytest.mark.parametrize(
    "name",
    [
        *(".env", "a/.env.local", "id_rsa", ".ssh/id_ed25519", "tls/server.pem", ".netrc", ".aws/credentials"),
        *("kubeconfig", "prod.kubeconfig", ".kube/config", "home/.docker/config.json", "kaggle.json"),
    ],
)
def test_name_of_a_secret_is_recognized(name: str) -> None:
    """A file is refused under a name that is used for secrets."""
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [".env.example", "id_rsa.pub", "env", "config", "credentials", "environment.yml"])
def test_harmless_name_is_accepted(name: str) -> None:
    """A template, a public key and an ordinary name are accepted."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (f"a = 1\nlogin('{TOKEN}')\n".encode(), [2]),
        (b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIEow\n" * 40, [1]),
        (f"'{TOKEN}'  # gitleaks:allow\n".encode(), []),
        (b"\0" + TOKEN.encode(), []),
        (b"headers = {'Authorization': f'Bearer {os.environ[TOKEN]}'}\n", []),
        (b"token = 'hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxx'\n", []),
    ],
)
def test_line_of_a_secret_is_named(content: bytes, lines: list[int]) -> None:
    """The lines with secrets are listed; not those of binary files, of placeholders and of accepted lines."""
    assert list(list_secret_lines(content)) == lines
