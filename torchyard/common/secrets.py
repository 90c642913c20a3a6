"""Find secrets that are written out, by their name or the shape of their value, and mask them before text is shown.

A plan on disk contains them, because the job needs them; only its user can read it. If in doubt, a value is masked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from torchyard.common.escaping import strip_control_codes
from torchyard.model.base import FrozenModel
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import CommandPlan, Plan

AnyModel = TypeVar("AnyModel", bound=FrozenModel)
MASK = "****"
_MIN_SECRET_CHARS = 8  # length of a value that is masked wherever it occurs: shorter ones are also words
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|(?:api|access|private|secret)_?key|_pat)(?:_|$)"
)
# The last word of a name that describes a secret but does not contain it: HF_TOKEN_PATH.
_DESCRIPTIVE_ENDINGS = frozenset(
    [
        "id",
        "ids",
        "file",
        "path",
        "dir",
        "name",
        "type",
        "limit",
        "length",
        "len",
        "count",
        "size",
        "url",
        "uri",
        "endpoint",
        "mode",
        "ttl",
        "index",
        "dim",
        "loss",
        "weight",
    ]
)
# A word of a name that is about tokens of a language: EOS_TOKEN.
_UNRELATED_WORDS = frozenset(["pad", "eos", "bos", "unk", "sep", "cls", "mask", "max", "min", "num", "per"])
# Values recognized by their shape: of Hugging Face, GitHub, GitLab, AWS, OpenAI, Slack, Google, NVIDIA, PyPI; a JWT.
_SECRET_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|pypi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,8192}(?:-----END[A-Z ]{0,30}-----)?"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]{0,200}):([^\s/@]{1,200})(?=@)")
_VALUE = r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'\\,;]+))"
_ASSIGNED_VALUE = re.compile(r"(?<![\w.-])(-{0,2}[A-Za-z][\w.-]{0,80})(=)" + _VALUE)
_FOLLOWING_VALUE = re.compile(r"(?<![\w.-])(--?[A-Za-z][\w.-]{0,80})( +)(?!-)" + _VALUE)
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_HARMLESS_VALUE = re.compile(r"(?i)[\d.,:+-]*|true|false|yes|no|on|off|none|null|auto|default|\$.*|<.*>|\*+")
# An expression of a program, as in `token=args.token`.
_CODE_VALUE = re.compile(r"[A-Za-z_]+[])}:]*|[A-Za-z_]\w*[.(\[].*")

# Of all plans of this process. A run never removes one, because its text may be shown later.
_known_secrets: set[str] = set()


class FoundSecret(NamedTuple):
    """A secret that is written out in a document, and the name of its variable, option or key."""

    name: str
    value: str


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable or an option looks like a secret, and not like a reference to one."""
    normalized = _WORD_BREAK.sub("_", name).lower().strip("_")
    if not _SECRET_NAME.search(normalized):
        return False
    words = normalized.split("_")
    if words[-1] in _DESCRIPTIVE_ENDINGS or _UNRELATED_WORDS.intersection(words):
        return False
    is_path = "credential" in normalized and value.startswith(("/", "~", "."))
    return not (is_path or _HARMLESS_VALUE.fullmatch(value))


def mask_text(text: str) -> str:
    """The text with every known secret, and everything that looks like one, replaced by asterisks."""
    for value in sorted(_known_secrets, key=len, reverse=True):  # a secret may contain another one
        text = text.replace(value, MASK)
    text = _SECRET_SHAPE.sub(MASK, text)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}", text)
    text = _ASSIGNED_VALUE.sub(_mask_match, text)
    return _FOLLOWING_VALUE.sub(_mask_match, text)


def _mask_match(match: re.Match[str]) -> str:
    """The match of a name, a separator and a value, with the value masked if it is a secret."""
    if not is_secret(match[1], _get_matched_value(match)):
        return match[0]
    return f"{match[1]}{match[2]}{MASK}"


def _get_matched_value(match: re.Match[str]) -> str:
    """The value of a match of _ASSIGNED_VALUE or _FOLLOWING_VALUE, without its quotes."""
    return match[match.lastindex or 0]


def mask_document(document: Any) -> Any:
    """A copy of a document, such as a plan, with its secrets masked, and without control codes for a terminal."""
    secret_values = {secret.value for secret in list_secrets(document)}

    def walk(node: Any) -> Any:
        match node:
            case str():
                return MASK if node in secret_values else mask_text(strip_control_codes(node))
            case dict():
                return {key: walk(value) for key, value in node.items()}
            case list() | tuple():
                return [walk(item) for item in node]
            case _:
                return node

    return walk(document)


def mask_model(model: AnyModel) -> AnyModel:
    """A copy of a model with its secrets masked."""
    return model.model_validate(mask_document(model.model_dump()))


def remember_secrets(plan: Plan) -> None:
    """Mask a plan's secrets from now on in every text: a program may print them."""
    remember_values(secret.value for secret in list_secrets(plan.model_dump()))


def remember_values(values: Iterable[str]) -> None:
    """Mask these values from now on in every text, except short ones, which may be ordinary words."""
    _known_secrets.update(value for value in values if len(value) >= _MIN_SECRET_CHARS)


def forget_values() -> None:
    """Forget all values of `remember_values`: from now on only shapes and names of secrets are masked.

    For a process that starts anew, such as a test; not during a run.
    """
    _known_secrets.clear()


def list_secrets(document: Any) -> Iterator[FoundSecret]:
    """Every secret that is written out in a document, by the name of a variable or an option, or by its shape."""
    match document:
        case str():
            yield from _list_secrets_in_text(document)
        case {"name": str(name), "value": str(value)} if is_secret(name, value):
            yield FoundSecret(name, value)
        case dict():
            for key, value in document.items():
                yield from _list_secrets_in_mapping(document, str(key), value)
        case list() | tuple():
            for name, value in pairwise(document):
                if _is_option_with_secret(name, value):
                    yield FoundSecret(name, value)
            for item in document:
                yield from list_secrets(item)
        case _:
            return


def _is_option_with_secret(name: object, value: object) -> bool:
    """Whether two neighbours in a command line are an option and its secret value."""
    if not isinstance(name, str) or not isinstance(value, str) or not _OPTION_NAME.fullmatch(name):
        return False
    return not value.startswith("-") and is_secret(name, value)


def _list_secrets_in_text(text: str) -> Iterator[FoundSecret]:
    for pattern in (_ASSIGNED_VALUE, _FOLLOWING_VALUE):
        for match in pattern.finditer(text):
            value = _get_matched_value(match)
            if is_secret(match[1], value):
                yield FoundSecret(match[1], value)
    for match in _SECRET_SHAPE.finditer(text):
        yield FoundSecret("a value", match[0])


def _list_secrets_in_mapping(document: dict[str, Any], key: str, value: Any) -> Iterator[FoundSecret]:
    """Secrets in the value of one key of a mapping, such as `env`, or the data of a Secret or a ConfigMap."""
    is_secret_object = document.get("kind") == "Secret" and key in ("data", "stringData")
    if isinstance(value, dict) and (key in ("env", "data") or is_secret_object):
        for name, text in value.items():
            if isinstance(text, str) and (is_secret_object or is_secret(str(name), text)):
                yield FoundSecret(str(name), text)
    is_program = document.get("kind") == "ConfigMap" and key in ("data", "binaryData")
    for secret in list_secrets(value):
        if not (is_program and _is_code(secret.value)):
            yield secret


def _is_code(value: str) -> bool:
    """Whether a value is an expression of a program, and not a literal."""
    return bool(_CODE_VALUE.fullmatch(value) and not _SECRET_SHAPE.search(value))


def check_exposed_secrets(plan: Plan) -> tuple[Finding, ...]:
    """A warning for each secret that is written out in the plan. It contains the name, not the value."""
    names = _list_secret_names(plan.model_dump())
    return tuple(
        warning_check(f"secret {name}", _describe_exposure(plan), _describe_remedy(plan, name)) for name in names
    )


def _list_secret_names(document: Any) -> list[str]:
    """The names of the secrets that are written out in a document, each once."""
    return list(dict.fromkeys(secret.name.lstrip("-") for secret in list_secrets(document)))


def describe_exposed_overrides(overrides: Mapping[str, Any]) -> str | None:
    """A warning about secrets in the parameters of a flow run, which every reader of the run can see; None if none."""
    env = {key.removeprefix("env."): value for key, value in overrides.items() if key.startswith("env.")}
    names = _list_secret_names({"overrides": dict(overrides), "env": env})
    if not names:
        return None
    warning = (
        f"overrides: {', '.join(names)}: looks like a secret, visible to everyone who may read this run in Prefect"
    )
    return f"{warning}; in pods use a Secret ({{secret: NAME, key: KEY}}), on machines set it in the hosts' environment"


def _describe_exposure(plan: Plan) -> str:
    if isinstance(plan, CommandPlan) and plan.launcher != "runai":
        return "is written out: it is in the run's plan.json, and in `ps` on its hosts if it is an argument"
    return "is written out: it is in the run's plan.json, and visible to everyone who may read the job's pods"


def _describe_remedy(plan: Plan, name: str) -> str:
    if isinstance(plan, CommandPlan) and plan.launcher != "runai":
        return "set it in the environment of the hosts and leave it out of the profile: jobs see that environment"
    suffix = ", with options.through: kubernetes" if isinstance(plan, CommandPlan) else ""
    return f"make a Secret and refer to it: env: {{{name}: {{secret: NAME, key: KEY}}}}{suffix}"
