"""Secrets that a profile contains are recognized by name and shape, and masked before text is shown."""

import json
from pathlib import Path

import pytest

from tests.conftest import Planned, Write, command_plan_of, load
from torchyard.common import secrets
from torchyard.common.project_root import ROOT
from torchyard.common.secrets import (
    MASK,
    check_exposed_secrets,
    describe_exposed_overrides,
    is_secret,
    list_secrets,
    mask_document,
    mask_text,
)
from torchyard.model.plan import CommandPlan, ManifestPlan

GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.json"))
LOGS = sorted((ROOT / "tests" / "logs").glob("*.*"))
WANDB = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    secrets.forget_values()


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "DB_PASSWD",
        "--api-key",
        "--apiToken",
        "CLIENT_SECRET",
        "TOKEN_2",
        "--password",
        "MLFLOW_TRACKING_PASSWORD",
    ],
)
def test_name_of_a_secret_is_recognized(name: str) -> None:
    """A secret is recognized by the words in its name, in any case and with any separators."""
    assert is_secret(name, "s3cr3t-value")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("WANDB_MODE", "offline"),
        ("PAD_TOKEN", "<pad>"),
        ("EOS_TOKEN_ID", "2"),
        ("--num-tokens", "12"),
        ("HF_TOKEN_PATH", "/run/token"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp.json"),
        ("HF_TOKEN", "$HF_TOKEN"),
        ("SECRET_NAME", "hf"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("--tokenizer", "gpt2"),
        ("OMP_NUM_THREADS", "1"),
        ("HF_TOKEN", ""),
    ],
)
def test_name_that_only_resembles_a_secret_is_not_one(name: str, value: str) -> None:
    """A name that only contains a word of secrets gives no false alarm."""
    assert not is_secret(name, value)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("python t.py --token=abc123 --lr 1", f"python t.py --token={MASK} --lr 1"),
        ("t.py --password hunter2 -v", f"t.py --password {MASK} -v"),
        ("export HF_TOKEN='x y'; run", f"export HF_TOKEN={MASK}; run"),
        ("docker run -e HF_TOKEN=abc img", f"docker run -e HF_TOKEN={MASK} img"),
        ("git clone https://me:pw@host/x", f"git clone https://me:{MASK}@host/x"),
        ("401 for hf_abcdefghijklmnopqrstuvwx", f"401 for {MASK}"),
        ("--verbose --token x", f"--verbose --token {MASK}"),
        ("the token is missing: a secret of yours", "the token is missing: a secret of yours"),
        ("max_tokens=512 tokenizer=gpt2", "max_tokens=512 tokenizer=gpt2"),
    ],
)
def test_only_the_secrets_of_a_text_are_masked(text: str, masked: str) -> None:
    """Only the secrets are masked in a command line, a shell line, a URL or a log line."""
    assert mask_text(text) == masked


KEY = "9f8A7b6C5d4E3f2A1b0C9d8E7f6A5b4C"  # not of a known issuer
HUB = "hooks.slack.com/services"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"api_key": "abc 123"}', f'{{"api_key": {MASK}}}'),
        ("{'apiKey': 'abc123', 'nodes': 2}", f"{{'apiKey': {MASK}, 'nodes': 2}}"),
        (r'"{\"api_key\": \"abc123def\"}"', rf'"{{\"api_key\": {MASK}}}"'),
        ("hf_token: abc123def456", f"hf_token: {MASK}"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", f"aws_secret_access_key = {MASK}"),
        ("os.environ['HF_TOKEN'] = 'abc123'", f"os.environ['HF_TOKEN'] = {MASK}"),
        ("DB_PASS=hunter2 MYSQL_PWD=hunter2", f"DB_PASS={MASK} MYSQL_PWD={MASK}"),
        ("password: swordfish\n", f"password: {MASK}\n"),
        ("AccountKey=abcDEF12==;EndpointSuffix=x", f"AccountKey={MASK};EndpointSuffix=x"),
        ("PREFECT_API_AUTH_STRING=admin:hunter2", f"PREFECT_API_AUTH_STRING={MASK}"),
        ("config: token=abc hf_token=def", f"config: token={MASK} hf_token={MASK}"),
        ("- name: HF_TOKEN\n  value: abc123", f"- name: HF_TOKEN\n  value: {MASK}"),
        ("{name: X_TOKEN, value: abc}", f"{{name: X_TOKEN, value: {MASK}"),
        ('{"name":"X_TOKEN","value":"abc"}', f'{{"name":"X_TOKEN","value":{MASK}}}'),
        ("Authorization: Bearer abc123def", f"Authorization: Bearer {MASK}"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", f"{{'Authorization': 'Basic {MASK}'}}"),
        (f"-H 'X-Api-Key: {KEY}'", f"-H 'X-Api-Key: {MASK}'"),
        (f"sent Bearer {KEY}", f"sent Bearer {MASK}"),
        ("postgres://user:p@ss@host/db", f"postgres://user:{MASK}@host/db"),
        (f"https://{KEY}@github.com/x", f"https://{MASK}@github.com/x"),
        (f"https://{KEY}:x-oauth-basic@github.com/x", f"https://{MASK}:{MASK}@github.com/x"),
        (f"https://{HUB}/T00/B00/XXXX", f"https://{HUB}/{MASK}"),
        ("https://discord.com/api/webhooks/123/abc-def", f"https://discord.com/api/webhooks/{MASK}"),
        ("https://x.webhook.office.com/webhookb2/1@2/In/3", f"https://x.webhook.office.com/webhookb2/{MASK}"),
        ("https://a.blob.core/c/b?sp=r&sig=aBcD%2FeF123456789%3D", f"https://a.blob.core/c/b?sp=r&sig={MASK}"),
        ("https://b.s3/k?X-Amz-Signature=aeeed9bbccd4d02ee5c0&x=1", f"https://b.s3/k?X-Amz-Signature={MASK}&x=1"),
        ("id AKIAIOSFODNN7EXAMPLE", f"id {MASK}"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcdefghijkl", MASK),
        ("-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128\nMIIE\n-----END RSA PRIVATE KEY----- x", f"{MASK} x"),
        (f"wandb login {WANDB}", f"wandb login {MASK}"),
        (f"machine api.wandb.ai login user password {WANDB}", f"machine api.wandb.ai login user password {MASK}"),
        ("curl -u admin:hunter2 https://x", f"curl -u admin:{MASK} https://x"),
        ("docker login -u me -p hunter2 registry", f"docker login -u me -p {MASK} registry"),
    ],
)
def test_spelling_of_a_secret_is_masked(text: str, masked: str) -> None:
    """A secret is masked in JSON, YAML, headers, URLs, manifests and command lines, and the rest stays readable."""
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a1B2" * 6,
        "ghp_" + "a1B2" * 6,
        "github_pat_" + "a1B2_" * 6,
        "glpat-" + "a1B2" * 5,
        "sk-proj-" + "a1B2" * 6,
        "nvapi-" + "a1B2" * 6,
        "npm_" + "a1B2" * 9,
        "pnu_" + "a1B2" * 9,
        "xoxb-123456789012-abcDEF",
        "AIza" + "a1B2c" * 7,
        "dapi" + "0a1b" * 8,
        "wandb_v1_" + "a1B2_" * 6,
        "AGE-SECRET-KEY-1" + "A1B2" * 6,
    ],
)
def test_token_is_recognized_by_its_issuer(token: str) -> None:
    """A token is masked wherever it is, because its beginning names its issuer."""
    assert mask_text(f"401 for {token}!") == f"401 for {MASK}!"


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: expected an identifier",
        "max_tokens=512 tokenizer=gpt2 eos_token: </s>",
        "token: ' the'",
        "forward_pass: 12.3ms key: value",
        "    def login(token: Optional[str] = None, password: str) -> None:",
        "hf_hub_download_of_a_snapshot",
        "PWD=/work SSH_KEY=/root/.ssh/id_rsa",
        "secretKeyRef: {name: hf, key: token}",
        "signal: sig=11 bearer authentication failed",
        "http://10.0.0.1:29500 root@host",
        "docker://image:24.01@sha256:abc",
        "https://10.96.0.1/apis/admission/webhook/validate-pods",
    ],
)
def test_ordinary_text_is_not_masked(text: str) -> None:
    """Words of a language model, of a program and of Kubernetes stay readable."""
    assert mask_text(text) == text


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_recorded_log_is_not_masked(path: Path) -> None:
    """No line of the recorded logs contains a secret."""
    lines = path.read_text().splitlines()
    assert [mask_text(line) for line in lines] == lines


@pytest.mark.parametrize("line", ["API_KEY={}", "api_key: {}", "--token={} --epochs 3", "aws eyJhbGciOiJIUzI1NiJ9.{}"])
def test_long_secret_is_masked_to_its_end(line: str) -> None:
    """A secret of any length is masked whole, and not only up to the limit of a search."""
    masked = mask_text(line.format("eyJ" + "a1B2-c3D4" * 2_000))
    assert MASK in masked
    assert "c3D4" not in masked


def test_key_of_a_mapping_names_a_secret() -> None:
    """A value in a document is masked by its key, unless the key is that of a reference."""
    document = {"settings": {"apiKey": "abc"}, "from": {"secret": "hub", "key": "token"}}
    assert mask_document(document) == {"settings": {"apiKey": MASK}, "from": {"secret": "hub", "key": "token"}}


def test_plan_of_pods_is_shown_without_its_secrets(planned: Planned) -> None:
    """Secrets are masked in environment, arguments and setup; references to secrets stay readable."""
    env = {"WANDB_API_KEY": WANDB, "LR": "0.1", "HF_TOKEN": {"secret": "hf", "key": "token"}}
    plan = planned(env=env, args=["--db-password", "hunter2"], setup=["export NGC_API_KEY=nv-123456"])
    masked = json.dumps(mask_document(plan.model_dump()))
    assert not [secret for secret in (WANDB, "hunter2", "nv-123456") if secret in masked]
    assert '"secretKeyRef": {"name": "hf", "key": "token"}' in masked


def test_every_value_of_a_secret_object_is_masked() -> None:
    """Every value of a Secret is masked, whatever its key."""
    document = {"kind": "Secret", "metadata": {"name": "hf"}, "stringData": {"anything": "abc", "n": "x1"}}
    assert mask_document(document)["stringData"] == {"anything": MASK, "n": MASK}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_shipped_profile_contains_a_secret(path: Path) -> None:
    """Masking changes nothing in the plans of the shipped profiles."""
    plan = json.loads(path.read_text())
    assert (list(list_secrets(plan)), mask_document(plan)) == ([], plan)


def test_preflight_warns_about_a_secret_by_its_name_only(planned: Planned, write: Write, tmp_path: Path) -> None:
    """The warning names a secret without its value. The remedy is a reference in pods, the hosts' environment else."""
    pods: ManifestPlan = planned(env={"WANDB_API_KEY": WANDB})
    machines_plan: CommandPlan = command_plan_of(load(write(env={"WANDB_API_KEY": WANDB})), tmp_path)
    (pods_check,) = check_exposed_secrets(pods)
    (machines_check,) = check_exposed_secrets(machines_plan)
    assert (pods_check.verdict, pods_check.where) == ("warning", "secret WANDB_API_KEY")
    assert "{WANDB_API_KEY: {secret: NAME, key: KEY}}" in pods_check.remedy
    assert machines_check.where == "secret WANDB_API_KEY"
    assert "environment of the hosts" in machines_check.remedy
    assert WANDB not in f"{pods_check}{machines_check}"


def test_secret_of_a_plan_is_masked_in_every_later_text(write: Write, tmp_path: Path) -> None:
    """A secret in a plan is masked in all later text, because a failing program may print its environment."""
    assert mask_text(f"config: {{'key': '{WANDB}'}}") != f"config: {{'key': '{MASK}'}}"
    secrets.remember_secrets(command_plan_of(load(write(env={"WANDB_API_KEY": WANDB})), tmp_path))
    assert mask_text(f"config: {{'key': '{WANDB}'}}") == f"config: {{'key': '{MASK}'}}"


def test_secret_in_the_overrides_gives_a_warning() -> None:
    """A secret in the overrides gives a warning, because Prefect shows them to everyone who may read the run."""
    warning = describe_exposed_overrides({"env.HF_TOKEN": "abcdef", "args": ["--api-key", "xyz123"], "nodes": 2})
    assert warning
    assert warning.startswith("overrides: HF_TOKEN, api-key: looks like a secret")
    assert "abcdef" not in warning


def test_overrides_without_a_secret_give_no_warning() -> None:
    """A reference to a secret is not a secret."""
    overrides = {"nodes": 2, "env.LR": "0.1", "env.HF_TOKEN": {"secret": "hf", "key": "token"}}
    assert describe_exposed_overrides(overrides) is None


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("load(name, token=args.hf_token, api_key=os.environ['KEY'], password=get_password())", []),
        ("login(token=token)", []),
        ("TOKEN = 1\nHF_TOKEN='abc123def456'", ["secret HF_TOKEN"]),
        ("login('hf_abcdefghijklmnopqrstuvwx')", ["secret a value"]),
        ("key = 'eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcdefghijkl'", ["secret a value"]),
    ],
)
def test_code_of_a_program_is_not_a_secret(planned: Planned, tmp_path: Path, line: str, names: list[str]) -> None:
    """In a program among the files for pods, only a literal is a secret, not an expression."""
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    checks = check_exposed_secrets(planned(files={"/opt/train.py": "train.py"}))
    assert [check.where for check in checks] == names
