"""What a sentence quotes from the line that proves a cause: the words around the match, and the facts that it names."""

import re

_MAX_QUOTE_CHARS = 160
_CHARS_BEFORE_MATCH = 40  # before the match
_SIZE = r"(\d[\d.]{0,12} [KMGT]iB)"
_HCA_NAME = "(?:mlx|bnxt_re|irdma|hfi|ionic|erdma|efa|rdmap|qedr|cxi)"
_HCA_EVENT = r"NET/IB ?: ([\w.+-]{1,40}:\d{1,3}) (?:async|[Gg]ot )"
# Facts, as NCCL, UCX and torch spell them; each is shown once.
_DETAILS = (
    ("peer", re.compile(r"(?:from peer|remote peer|connect to) ([\w.:\[\]%-]{2,80}?(?:<\d{1,6}>)?)(?=[\s,;]|$)")),
    ("HCA", re.compile(rf"\b(?:hca|on dev|on) ({_HCA_NAME}\w{{0,40}}(?::\d{{1,3}})?)|{_HCA_EVENT}")),
    ("GID index", re.compile(r"GID index[ :=]{1,3}(\d{1,3})")),
    ("local GID", re.compile(r"local ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("remote GID", re.compile(r"remote ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("wanted", re.compile(rf"[Tt]ried to allocate {_SIZE}")),
    ("GPU memory", re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")),
    ("free", re.compile(rf"of which {_SIZE} is free|{_SIZE} free")),
)


def quote_match(text: str, span: tuple[int, int]) -> str:
    """At most 160 characters of a line, with those from `span[0]` on among them; what is cut is shown as `...`."""
    text, indent = text.strip(), len(text) - len(text.lstrip())
    if len(text) <= _MAX_QUOTE_CHARS:
        return text
    start = max(min(span[0] - indent - _CHARS_BEFORE_MATCH, len(text) - _MAX_QUOTE_CHARS), 0)
    start = text.rfind(" ", max(start - 20, 0), start) + 1 if start else 0
    quote = text[start : start + _MAX_QUOTE_CHARS]
    return f"{'... ' if start else ''}{quote}{'...' if start + len(quote) < len(text) else ''}"


def extract_details(text: str) -> str:
    """`peer 10.0.0.5<44>, HCA mlx5_0, GID index 3`: which of these facts the line has."""
    matches = ((name, match) for name, pattern in _DETAILS if (match := pattern.search(text)))
    return ", ".join(f"{name} {next(filter(None, match.groups()))}" for name, match in matches)
