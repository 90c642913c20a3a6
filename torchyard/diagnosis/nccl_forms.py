"""The forms of NCCL's and RCCL's log lines, as regular expressions.

They are those of NCCL 2.4 to 2.30 (src/debug.cc, init.cc, transport/net*.cc, coll_net.cc, p2p.cc), of RCCL, and of the
plugins that log through NCCL: libfabric's, NVIDIA's with SHARP, Google's.
"""

import re

NCCL_MARKER = b"CCL "  # in every line that has one of these forms
RDMA_PROBE_MARKER = (
    b'{"torchyard_rdma": {"lacks": ['  # a pod's own line, before its processes start (host/rdma_facts.py)
)
RDMA_PROBE = re.compile(rf'{re.escape(RDMA_PROBE_MARKER.decode())}((?:"[^"\\]{{1,400}}"(?:, )?){{0,5}})\]')
MAX_MESSAGE_CHARS = 4000  # of one process's line
COLOUR_BYTES = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
COLOUR = re.compile(COLOUR_BYTES.pattern.decode())
# The host's name may have been replaced by `<name>`. A time of day (`12:30:45 [0] NCCL INFO`) is no host.
LINE_PREFIX = re.compile(
    r"(?:(?P<host><[\w.-]{1,99}>|(?!\d+:)[\w.-]{1,253}):\d{1,10}(?::\d{1,10})? \[-?\d{1,4}\] "
    r"(?:(?:(?!NCCL )[^\[\]]){1,300}?:\d{1,5} (?:\([^()]{1,99}\) )?)?)?NCCL (?:INFO|WARN|ATTN|TRACE) "
)
VERSION = re.compile(r"\bR?N?CCL version ?:? ?(\d+(?:\.\d+)+(?:\+[a-z]+\d+(?:\.\d+)*)?)")
_TRANSPORT = r"[\w.+-]+(?: [\w.+-]+)*"  # a plugin's name may have spaces
CHANNEL = re.compile(
    r"(?:Channel|Ring|Tree|Coll(?:Net)?) \d+(?:/\d+)? ?: +-?\d+(?:\[\w+\])? (?:-> -?\d+(?:\[\w+\])? )?"
    r"(?:\[(?:send|receive)\] )?via (?:"
    rf"(?P<coll>COLL)?NET/(?P<net>{_TRANSPORT})/(?P<device>\d+)(?:\(\d+\))?(?P<how>(?:/[A-Za-z]+(?:\([A-Z]+\))?)*)"
    r"(?P<torn>[\w/(.:-]|\s+(?!comm )\w)?"  # what follows is of another line, and the end of this one is lost
    r"|(?P<near>\w*P2P/|SHM/|direct shared)(?P<mnnvl>MNNVL)?)"
)
DEVICE_LIST = re.compile(rf"NET/(?P<net>{_TRANSPORT}) ?: Using (?P<list>.*)")
HCA = re.compile(r"\[(\d+)\] ?([\w.+-]{1,200}):\d+/(IB|RoCE)(?![A-Za-z])")
MERGED_DEVICE = re.compile(r"\[(\d+)\]=\{([^}]*)")
DEVICE_LIST_END = re.compile(r"\[RO\]|; OOB")
NIC = re.compile(r"\[(\d+)\] ?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
VIRTUAL_DEVICE = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
GDR_DEVICE = re.compile(rf"NET/(?P<net>{_TRANSPORT}) ?: GPU Direct RDMA .{{0,60}}for HCA (\d+) '([\w.+-]+)'")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
OUT_OF_BAND = re.compile(r"Bootstrap ?: Using (.*)|; OOB (.*)")
OUT_OF_BAND_NIC = re.compile(r"(?:\[\d+\])?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
CHOSEN_TRANSPORT = re.compile(
    rf"(?:Using network|Assigned NET plugin|Initialized NET plugin) ({_TRANSPORT}?)(?= to comm| \[|\s*$)"
)
RANK_COUNT = re.compile(r"\bn[Rr]anks[ =](\d+)")
NODE_COUNT = re.compile(r"\bnNodes (\d+)")
# Why NCCL may use TCP, in its own words.
HINTS = {
    "libibverbs": re.compile(r"Failed to open libibverbs"),
    "IB_DISABLE": re.compile(r"NCCL_IB_DISABLE set by environment to [1-9]"),
    "NCCL_NET": re.compile(r"NCCL_NET set (?:by environment )?to \"?Socket"),
    "no device": re.compile(r"NET/IB\w* : No device found"),
    "no provider": re.compile(r"NET/OFI No eligible providers"),
}
# What tells something, in bytes, as far as it matters: most lines of a long log are never decoded.
_REST_OF_LINE = b"[^\r\n]{0,%d}" % MAX_MESSAGE_CHARS
KEY_PHRASES = {
    b"via ": re.compile(rb"via [A-Zd][^\r\n ]*(?: (?!comm 0x)[^\r\n ]*)*"),  # RCCL adds the communicator
    b"anks ": re.compile(rb"anks \d+(?: nNodes \d+)?"),
    b"Using ": re.compile(b"Using " + _REST_OF_LINE),
}
# What processes say only while they start, as they do the other things.
_STARTUP_NEEDLES = (b"NET plugin ", b"CCL version", b"Made virtual", b"for HCA ", b"Selected ", b"Failed to open lib")
_HINT_NEEDLES = (b"NCCL_IB_DISABLE set", b"NCCL_NET set", b": No device found", b"No eligible providers")
STARTUP_PHRASES = {
    word: re.compile(re.escape(word) + _REST_OF_LINE) for word in (RDMA_PROBE_MARKER, *_STARTUP_NEEDLES, *_HINT_NEEDLES)
}
