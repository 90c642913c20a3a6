"""Find secrets that are written out, by their name or the shape of their value, and mask them before text is shown.

A plan on disk contains them, because the job needs them; only its user can read it. If in doubt, a value is masked.
"""

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secret_shapes import SECRET_SHAPES, build_literal_pattern, find_shapes
from torchyard.model.base import FrozenModel
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.run import Row

AnyModel = TypeVar("AnyModel", bound=FrozenModel)
MASK = "****"
_MIN_SECRET_CHARS = 8  # length of a value that is masked wherever it occurs: shorter ones are also words
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_ASCII_LOWER_CASE = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# Every name of a secret contains one of these.
_NAME_PARTS = ("token", "secret", "pass", "pwd", "credential", "key", "_pat", "auth_string", "authstring")
_NAME_PART = re.compile(build_literal_pattern(_NAME_PARTS))
_ANY_SIGN = re.compile(
    build_literal_pattern([*_NAME_PARTS, *(keyword for shape in SECRET_SHAPES for keyword in shape.keywords)])
)
_SECRET_NAME = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|passcode|credentials?|_pat|_auth_string"
    r"|(?:^|_)(?:pass|pwd)"
    r"|(?:api|auth|access|private|secret|account|master|signing|encryption|license|ssh|storage)_?key)\d{0,2}(?:_|$)"
)
_PASSWORD_NAME = re.compile(r"(?:passw(?:or)?d|passphrase|passcode|(?:^|_)(?:pass|pwd))$")
_PATH_NAME = re.compile(r"credential|^pwd$|(?:ssh|private|license)_key")  # its value may be the path of a file
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
# A word of a name that is about tokens of a language, or about a pass of a program: EOS_TOKEN, forward_pass.
_LANGUAGE_WORDS = ("pad", "eos", "bos", "unk", "sep", "cls", "mask", "next", "stop", "image", "special")
_PASS_WORDS = ("max", "min", "num", "per", "forward", "backward", "single", "multi")
_UNRELATED_WORDS = frozenset([*_LANGUAGE_WORDS, *_PASS_WORDS])
# A user's name and password in a URL; the password may contain `@`. `image:tag@sha256:` is not one.
_URL_USER = re.compile(r"(?<=://)([^\s/:@\"'<>]{0,300})(?::([^\s/\"'<>]{1,300}))?@(?!sha256:)")
_OPAQUE_USER = re.compile(r"(?=[\w.~%+-]*[A-Za-z])(?=[\w.~%+-]*\d)[\w.~%+-]{16,}")
_QUOTE = r"\\{0,3}[\"']?"  # also of a text that is quoted itself
_NAME_CHARS = frozenset("_.-")  # beside letters and digits
_MAX_NAME_CHARS = 82
# A name, and its value: `name=value`, `"name": "value"`, `['name'] = 'value'`, `--name value`, and `name, value: value`
# as in a manifest's list of variables.
_NAMED_VALUE = re.compile(
    rf"(?P<name>[\w.-]{{1,{_MAX_NAME_CHARS}}})(?P<separator>"
    rf"{_QUOTE}\]?[ \t]{{0,8}}(?:=>|:=|=|:)[ \t]{{0,8}}"
    rf"|(?P<list>{_QUOTE}[\s,]{{1,80}}{_QUOTE}value{_QUOTE}[ \t]{{0,8}}[:=][ \t]{{0,8}})"
    r"|(?P<option> +)(?!-))"
    r"(?:[bBfFrRuU]{0,2}(?:\\{1,3}\"(?P<escaped>[^\"\\]{0,4096})\\{0,3}\"?|\"(?P<double>(?:[^\"\\]|\\.){0,4096})\"?"
    r"|'(?P<single>(?:[^'\\]|\\.){0,4096})'?)|(?P<bare>[^\s\"'\\,;]{1,4096}))"
)
_BARE_REST = re.compile(r"[^\s\"'\\,;]*")
# A key whose value is the name of an object.
_REFERENCE_KEYS = frozenset(["secret", "token", "pull_secret", "image_pull_secret"])
_VALUE_GROUPS = ("escaped", "double", "single", "bare")
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_HARMLESS_VALUE = re.compile(
    r"(?i)[\d.,:+/%-]{0,15}|\d[\d.]{0,10}(?:[kmgt]i?b?|[mun]?s|min|h|x)"
    r"|(?:true|false|yes|no|on|off|none|null|auto|default)[])}`.:]{0,4}|\$.*|<.*>|\*+"
)
# An expression of a program, as in `token=args.token`.
_CODE_VALUE = re.compile(r"[A-Za-z_]+[])}:]*|[A-Za-z_]\w*[.(\[].*")
# A value after `name: ` is often a word of prose; a secret has digits, or it is long.
_OPAQUE_VALUE = re.compile(r"(?=.{0,300}\d).{6,}|.{16,}")

# Of all plans of this process. A run never removes one, because its text may be shown later.
_known_secrets: set[str] = set()


class FoundSecret(NamedTuple):
    """A secret that is written out in a document, and the name of its variable, option or key."""

    name: str
    value: str


class _NamedValue(NamedTuple):
    """A secret in a text behind its name; `start` and `end` are the offsets of the value with its quotes."""

    name: str
    value: str
    start: int
    end: int


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable or an option looks like a secret, and not like a reference to one."""
    normalized = _normalize_name(name)
    if not _SECRET_NAME.search(normalized):
        return False
    words = normalized.split("_")
    if words[-1] in _DESCRIPTIVE_ENDINGS or _UNRELATED_WORDS.intersection(words):
        return False
    is_path = bool(_PATH_NAME.search(normalized)) and value.startswith(("/", "~", "."))
    return not (is_path or _HARMLESS_VALUE.fullmatch(value))


def mask_text(text: str) -> str:
    """The text with every known secret, and everything that looks like one, replaced by asterisks."""
    for value in sorted(_known_secrets, key=len, reverse=True):  # a secret may contain another one
        text = text.replace(value, MASK)
    lower_text = _to_lower_case(text)
    if _ANY_SIGN.search(lower_text):
        for shape in find_shapes(lower_text):
            text = shape.pattern.sub(_mask_secret_group, text)
        text = _mask_named_values(text)
    if "://" in text and "@" in text:
        text = _URL_USER.sub(_mask_url_user, text)
    return text


def _to_lower_case(text: str) -> str:
    """The text in lower case, with every offset unchanged. An expression that ignores case is ten times slower."""
    lower_text = text.lower()
    return lower_text if len(lower_text) == len(text) else text.translate(_ASCII_LOWER_CASE)


def _mask_secret_group(match: re.Match[str]) -> str:
    """The match of a shape with its group `secret` masked."""
    start, end = match.span("secret")
    offset = match.start()
    return f"{match[0][: start - offset]}{MASK}{match[0][end - offset :]}"


def _mask_url_user(match: re.Match[str]) -> str:
    """The user of a URL with the password masked, and the name too if it looks like a token."""
    user = MASK if _OPAQUE_USER.fullmatch(match[1]) else match[1]
    return f"{user}:{MASK}@" if match[2] else f"{user}@"


def _mask_named_values(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for named_value in _find_named_values(text):
        pieces += [text[position : named_value.start], MASK]
        position = named_value.end
    pieces.append(text[position:])
    return "".join(pieces)


def _find_named_values(text: str) -> Iterator[_NamedValue]:
    """The secrets of a text that follow their names."""
    position = 0
    for part in _NAME_PART.finditer(_to_lower_case(text)):
        if part.start() < position:
            continue
        match = _NAMED_VALUE.match(text, _find_name_start(text, part.start(), position))
        if match and _is_named_secret(match):
            value = _get_value(match)
            position = match.end()
            # The pattern's bound keeps a search in a long text short, but a secret may be longer.
            rest = _BARE_REST.match(text, position) if match["bare"] else None
            if rest:
                value += rest[0]
                position = rest.end()
            yield _NamedValue(match["name"], value, match.end("separator"), position)


def _find_name_start(text: str, end: int, earliest: int) -> int:
    """The offset at which the name with a part that starts at `end` begins; not before `earliest`."""
    start = end
    earliest = max(earliest, end - _MAX_NAME_CHARS)
    while start > earliest and (text[start - 1].isalnum() or text[start - 1] in _NAME_CHARS):
        start -= 1
    return start


def _get_value(match: re.Match[str]) -> str:
    """The value of a match of _NAMED_VALUE, without its quotes."""
    for group in _VALUE_GROUPS:
        if match[group] is not None:
            return match[group]
    return ""


def _is_named_secret(match: re.Match[str]) -> bool:
    """Whether a match of _NAMED_VALUE is a secret, and not a word of a sentence or of a program."""
    name = match["name"]
    value = _get_value(match)
    if not is_secret(name, value):
        return False
    if match["option"]:
        return name.startswith("-")
    if match["separator"] == "=" or match["list"] or name.startswith("-"):
        return True
    normalized = _normalize_name(name)
    if match["bare"] is None:
        return normalized not in ("token", "secret") or bool(_OPAQUE_VALUE.fullmatch(value))
    if _PASSWORD_NAME.search(normalized) and match.string[match.end() : match.end() + 1] in ("", "\n"):
        return "(" not in value
    return bool(_OPAQUE_VALUE.fullmatch(value)) and not _CODE_VALUE.fullmatch(value)


def _normalize_name(name: str) -> str:
    """`api_key` for `--apiKey`."""
    return _WORD_BREAK.sub("_", name).lower().strip("_")


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


def mask_row(row: Row) -> Row:
    """A row of metrics with the secrets in its texts masked; a row of numbers alone is returned as it is."""
    has_text = any(isinstance(value, str) for value in row.values())
    return mask_document(row) if has_text else row


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
    for named_value in _find_named_values(text):
        yield FoundSecret(named_value.name, named_value.value)
    for shape in find_shapes(_to_lower_case(text)):
        for match in shape.pattern.finditer(text):
            yield FoundSecret("a value", match["secret"])


def _list_secrets_in_mapping(document: dict[str, Any], key: str, value: Any) -> Iterator[FoundSecret]:
    """Secrets in the value of one key of a mapping, such as `env`, or the data of a Secret or a ConfigMap."""
    is_secret_object = document.get("kind") == "Secret" and key in ("data", "stringData")
    if isinstance(value, dict) and (key in ("env", "data") or is_secret_object):
        for name, text in value.items():
            if isinstance(text, str) and (is_secret_object or is_secret(str(name), text)):
                yield FoundSecret(str(name), text)
    elif isinstance(value, str) and key not in _REFERENCE_KEYS and is_secret(key, value):
        yield FoundSecret(key, value)
    is_program = document.get("kind") == "ConfigMap" and key in ("data", "binaryData")
    for secret in list_secrets(value):
        if not (is_program and _is_code(secret.value)):
            yield secret


def _is_code(value: str) -> bool:
    """Whether a value is an expression of a program, and not a literal."""
    has_shape = any(shape.pattern.search(value) for shape in find_shapes(value.lower()))
    return bool(_CODE_VALUE.fullmatch(value)) and not has_shape


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
    names = [name.removeprefix("env.") for name in _list_secret_names(dict(overrides))]
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
    remedy = f"make a Secret and refer to it: env: {{{name}: {{secret: NAME, key: KEY}}}}"
    if isinstance(plan, CommandPlan):
        return f"{remedy}, with options.through: kubernetes"
    return f"{remedy} in the profile, or in a manifest valueFrom: {{secretKeyRef: {{name: NAME, key: KEY}}}}"
