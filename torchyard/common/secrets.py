"""Finds secrets that are written out, by name and by the shape of the value, and masks them where they are shown.

A plan on disk keeps them because the job needs them; only its user can read it. Masking a word too many costs nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from torchyard.common.escaping import strip_control_codes
from torchyard.model.base import FrozenModel
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.requirements import Check, warning_check

N = TypeVar("N", bound=FrozenModel)
_MASK = "****"
_MIN_SECRET_CHARS = 8  # length of a value that is masked wherever it occurs: shorter ones are also words
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|(?:api|access|private|secret)_?key|_pat)(?:_|$)"
)
# A name that ends in, or contains, one of these describes a secret, or is about tokens of a language.
_DESCRIPTIVE_ENDINGS = frozenset(
    (
        *("id", "ids", "file", "path", "dir", "name", "type", "limit", "length", "len", "count", "size", "url", "uri"),
        *("endpoint", "mode", "ttl", "index", "dim", "loss", "weight"),
    )
)
_UNRELATED_WORDS = frozenset(("pad", "eos", "bos", "unk", "sep", "cls", "mask", "max", "min", "num", "per"))
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
# In a program, `token=args.token` holds none.
_CODE_VALUE = re.compile(r"[A-Za-z_]+[])}:]*|[A-Za-z_]\w*[.(\[].*")

_known_secrets: set[str] = set()  # values from this process's plans; like those that Prefect knows, they only increase


class FoundSecret(NamedTuple):
    """A secret spelled out in a document, and the name of what holds it."""

    name: str
    value: str


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable or an option seems to hold a secret, and not a reference to one."""
    normalized = _WORD_BREAK.sub("_", name).lower().strip("_")
    words = normalized.split("_")
    if not _SECRET_NAME.search(normalized) or words[-1] in _DESCRIPTIVE_ENDINGS or _UNRELATED_WORDS.intersection(words):
        return False
    is_path = "credential" in normalized and value.startswith(("/", "~", "."))
    return not (is_path or _HARMLESS_VALUE.fullmatch(value))


def mask_text(text: str) -> str:
    """The text, with all that looks like a secret, or is a known one, masked."""
    for value in sorted(_known_secrets, key=len, reverse=True):
        text = text.replace(value, _MASK)
    text = _URL_PASSWORD.sub(rf"\1:{_MASK}", _SECRET_SHAPE.sub(_MASK, text))
    return _FOLLOWING_VALUE.sub(_mask_match, _ASSIGNED_VALUE.sub(_mask_match, text))


def _mask_match(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{_MASK}" if _is_secret(match[1], match[match.lastindex or 0]) else match[0]


def mask_document(document: Any) -> Any:
    """Mask every text in a document, such as a plan, and remove terminal control codes."""
    secret_values = {secret.value for secret in _list_secrets(document)}

    def walk(node: Any) -> Any:
        match node:
            case str():
                return _MASK if node in secret_values else mask_text(strip_control_codes(node))
            case dict():
                return {key: walk(value) for key, value in node.items()}
            case list() | tuple():
                return [walk(item) for item in node]
            case _:
                return node

    return walk(document)


def mask_model(model: N) -> N:
    """Mask every text in a model that is stored and shown."""
    return model.model_validate(mask_document(model.model_dump()))


def remember_secrets(plan: Plan) -> None:
    """Mask a plan's secrets from now on wherever they occur: a program may print them."""
    remember_values(secret.value for secret in _list_secrets(plan.model_dump()))


def remember_values(values: Iterable[str]) -> None:
    """Mask these values from now on wherever they occur; short ones are also words, and are not masked."""
    _known_secrets.update(value for value in values if len(value) >= _MIN_SECRET_CHARS)


def _list_secrets(document: Any) -> Iterator[FoundSecret]:
    """Every secret spelled out in a document, found by the name of a variable or an option, or by its shape."""
    match document:
        case str():
            yield from _list_secrets_in_text(document)
        case {"name": str(name), "value": str(value)} if _is_secret(name, value):
            yield FoundSecret(name, value)
        case dict():
            for key, value in document.items():
                yield from _list_secrets_in_mapping(document, str(key), value)
        case list() | tuple():
            for name, value in pairwise(document):
                if isinstance(name, str) and isinstance(value, str) and _OPTION_NAME.fullmatch(name):
                    yield from (
                        [FoundSecret(name, value)] if not value.startswith("-") and _is_secret(name, value) else []
                    )
            for item in document:
                yield from _list_secrets(item)
        case _:
            return


def _list_secrets_in_text(text: str) -> Iterator[FoundSecret]:
    for match in (*_ASSIGNED_VALUE.finditer(text), *_FOLLOWING_VALUE.finditer(text)):
        if _is_secret(match[1], value := match[match.lastindex or 0]):
            yield FoundSecret(match[1], value)
    yield from (FoundSecret("a value", match[0]) for match in _SECRET_SHAPE.finditer(text))


def _list_secrets_in_mapping(document: dict[str, Any], key: str, value: Any) -> Iterator[FoundSecret]:
    """Secrets in one value of a mapping, such as `env`, or the data of a Secret or a ConfigMap."""
    is_secret_object = document.get("kind") == "Secret" and key in ("data", "stringData")
    if isinstance(value, dict) and (key in ("env", "data") or is_secret_object):
        named_texts = ((str(name), text) for name, text in value.items() if isinstance(text, str))
        yield from (FoundSecret(name, text) for name, text in named_texts if is_secret_object or _is_secret(name, text))
    is_program = document.get("kind") == "ConfigMap" and key in ("data", "binaryData")
    yield from (secret for secret in _list_secrets(value) if not (is_program and _is_code(secret.value)))


def _is_code(value: str) -> bool:
    return bool(_CODE_VALUE.fullmatch(value) and not _SECRET_SHAPE.search(value))


def check_exposed_secrets(plan: Plan) -> tuple[Check, ...]:
    """A warning for each secret spelled out in the profile; it shows only the name."""
    names = dict.fromkeys(secret.name.lstrip("-") for secret in _list_secrets(plan.model_dump()))
    return tuple(
        warning_check(f"secret {name}", _describe_exposure(plan), _describe_remedy(plan, name)) for name in names
    )


def describe_exposed_overrides(overrides: Mapping[str, Any]) -> str:
    """A warning about secrets in a flow run's parameters, visible to all who may read the run; empty if none."""
    env = {key.removeprefix("env."): value for key, value in overrides.items() if key.startswith("env.")}
    names = dict.fromkeys(secret.name.lstrip("-") for secret in _list_secrets({"given": dict(overrides), "env": env}))
    if not names:
        return ""
    warning = (
        f"overrides: {', '.join(names)}: looks like a secret, visible to everyone who may read this run in Prefect"
    )
    return f"{warning}; in pods use a Secret ({{secret: NAME, key: KEY}}), on machines set it in the hosts' environment"


def _describe_exposure(plan: Plan) -> str:
    if isinstance(plan, CommandPlan) and plan.launcher == "baremetal":
        return "is written out: it is in the run's plan.json, and in `ps` on its hosts if it is an argument"
    return "is written out: it is in the run's plan.json, and visible to everyone who may read the job's pods"


def _describe_remedy(plan: Plan, name: str) -> str:
    if isinstance(plan, CommandPlan) and plan.launcher == "baremetal":
        return "set it in the environment of the hosts and leave it out of the profile: jobs see that environment"
    suffix = ", with options.through: kubernetes" if isinstance(plan, CommandPlan) else ""
    return f"make a Secret and refer to it: env: {{{name}: {{secret: NAME, key: KEY}}}}{suffix}"
