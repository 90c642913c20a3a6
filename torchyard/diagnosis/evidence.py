"""What a sentence quotes from the line that proves a cause: the text around the match, and the details in it."""

import re

_MAX_QUOTE_CHARS = 160
_CHARS_BEFORE_MATCH = 40
_MAX_WORD_SHIFT = 20  # characters by which a quote begins earlier, to begin with a whole word
# What torch's C++ code puts before a message: level, time and place, and often the process group.
_TORCH_PREFIX = re.compile(r"\s*\[[DIWEF]\d{4} [\d:.]{8,20} [\w./-]{1,80}:\d{1,6}\] (?:\[PG [^\]]{1,160}\] +)?")
_SIZE = r"(\d[\d.]{0,12} [KMGT]iB)"
_HCA_NAME = "(?:mlx|bnxt_re|irdma|hfi|ionic|erdma|efa|rdmap|qedr|cxi)"
_HCA_EVENT = r"NET/IB ?: ([\w.+-]{1,40}:\d{1,3}) (?:async|[Gg]ot )"
# Details, as NCCL, UCX and torch print them; each is quoted once.
_DETAILS = (
    (
        "peer",
        re.compile(
            r"(?:from peer|remote peer|connect to(?! any network)) ([\w.:\[\]%-]{2,80}?(?:<\d{1,6}>)?)(?=[\s,;]|$)"
        ),
    ),
    ("HCA", re.compile(rf"\b(?:hca|on dev|on) ({_HCA_NAME}\w{{0,40}}(?::\d{{1,3}})?)|{_HCA_EVENT}")),
    ("GID index", re.compile(r"GID index[ :=]{1,3}(\d{1,3})")),
    ("local GID", re.compile(r"local ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("remote GID", re.compile(r"remote ?G[Ii][Dd]s?(?: ?[=:] |[ =])?([\da-fA-F:.]{4,64})")),
    ("wanted", re.compile(rf"[Tt]ried to allocate {_SIZE}")),
    ("GPU memory", re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")),
    ("free", re.compile(rf"of which {_SIZE} is free|{_SIZE} free")),
)


def quote_match(text: str, span: tuple[int, int]) -> str:
    """At most 160 characters of a line, those from `span[0]` on among them; `...` stands for what is left out.

    What torch's C++ code puts before its messages is left out, too, unless the match is in it.
    """
    offset = span[0]
    prefix_match = _TORCH_PREFIX.match(text)
    if prefix_match and prefix_match.end() <= offset:
        offset -= prefix_match.end()
        text = text[prefix_match.end() :]
    indent = len(text) - len(text.lstrip())
    text = text.strip()
    if len(text) <= _MAX_QUOTE_CHARS:
        return text
    start = max(min(offset - indent - _CHARS_BEFORE_MATCH, len(text) - _MAX_QUOTE_CHARS), 0)
    if start:
        start = text.rfind(" ", max(start - _MAX_WORD_SHIFT, 0), start) + 1
    end = start + _MAX_QUOTE_CHARS
    prefix = "... " if start else ""
    suffix = "..." if end < len(text) else ""
    return f"{prefix}{text[start:end]}{suffix}"


def extract_details(text: str) -> str:
    """The details that a line contains, as `peer 10.0.0.5<44>, HCA mlx5_0, GID index 3`; empty if it has none."""
    details = []
    for name, pattern in _DETAILS:
        if match := pattern.search(text):
            detail = next(filter(None, match.groups()))  # each alternative of a pattern has a group of its own
            details.append(f"{name} {detail}")
    return ", ".join(details)
