"""What a sentence quotes from the line that proves a cause: the words around the match, and the facts that it names."""

import re

_PROOF_CHARS = 160
_LEAD_CHARS = 40  # before the match
_SIZE = r"(\d[\d.]{0,12} [KMGT]iB)"
_HCA_NAME = "(?:mlx|bnxt_re|irdma|hfi|ionic|erdma|efa|rdmap|qedr|cxi)"
_EVENT_OF_HCA = r"NET/IB ?: ([\w.+-]{1,40}:\d{1,3}) (?:async|[Gg]ot )"
# Facts, as NCCL, UCX and torch spell them; each is shown once.
_DETAILS = (
    ("peer", re.compile(r"(?:from peer|remote peer|connect to) ([\w.:\[\]%-]{2,80}?(?:<\d{1,6}>)?)(?=[\s,;]|$)")),
    ("HCA", re.compile(rf"\b(?:hca|on dev|on) ({_HCA_NAME}\w{{0,40}}(?::\d{{1,3}})?)|{_EVENT_OF_HCA}")),
    ("GID index", re.compile(r"GID index[ :=]{1,3}(\d{1,3})")),
    ("local GID", re.compile(r"local ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("remote GID", re.compile(r"remote ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("wanted", re.compile(rf"[Tt]ried to allocate {_SIZE}")),
    ("GPU memory", re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")),
    ("free", re.compile(rf"of which {_SIZE} is free|{_SIZE} free")),
)


def quote_around(text: str, span: tuple[int, int]) -> str:
    """At most 160 characters of a line, with those from `span[0]` on among them; what is cut is shown as `...`."""
    text, shift = text.strip(), len(text) - len(text.lstrip())
    if len(text) <= _PROOF_CHARS:
        return text
    start = max(min(span[0] - shift - _LEAD_CHARS, len(text) - _PROOF_CHARS), 0)
    start = text.rfind(" ", max(start - 20, 0), start) + 1 if start else 0
    part = text[start : start + _PROOF_CHARS]
    return f"{'... ' if start else ''}{part}{'...' if start + len(part) < len(text) else ''}"


def read_details(text: str) -> str:
    """`peer 10.0.0.5<44>, HCA mlx5_0, GID index 3`: which of these facts the line has."""
    found = ((name, match) for name, pattern in _DETAILS if (match := pattern.search(text)))
    return ", ".join(f"{name} {next(filter(None, match.groups()))}" for name, match in found)
