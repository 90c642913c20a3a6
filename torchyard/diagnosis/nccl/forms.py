"""The forms of NCCL's and RCCL's log lines, as regular expressions.

They are those of NCCL 2.4 to 2.30 (src/debug.cc, init.cc, transport/net*.cc, coll_net.cc, p2p.cc), of RCCL, and of the
plugins that log through NCCL: libfabric's, NVIDIA's with SHARP, Google's.
"""

import re

NCCL_MARKER = b"CCL "  # in every line that has one of these forms
# A line that the pod itself prints before its processes start: host/rdma_facts.py.
RDMA_PROBE_MARKER = b'{"torchyard_rdma": {"lacks": ['
RDMA_PROBE = re.compile(rf'{re.escape(RDMA_PROBE_MARKER.decode())}((?:"[^"\\]{{1,400}}"(?:, )?){{0,5}})\]')
MAX_MESSAGE_CHARS = 4000  # of one process's line
COLOUR_BYTES = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
COLOUR = re.compile(COLOUR_BYTES.pattern.decode())
# The host's name may have been replaced by `<name>`. A time of day (`12:30:45 [0] NCCL INFO`) is not a host.
LINE_PREFIX = re.compile(
    r"(?:(?P<host><[\w.-]{1,99}>|(?!\d+:)[\w.-]{1,253}):\d{1,10}(?::\d{1,10})? \[-?\d{1,4}\] "
    r"(?:(?:(?!NCCL )[^\[\]]){1,300}?:\d{1,5} (?:\([^()]{1,99}\) )?)?)?NCCL (?:INFO|WARN|ATTN|TRACE) "
)
VERSION = re.compile(r"\bR?N?CCL version ?:? ?(\d+(?:\.\d+)+(?:\+[a-z]+\d+(?:\.\d+)*)?)")
_TRANSPORT = r"[\w.+-]+(?: [\w.+-]+)*"  # a plugin's name may have spaces
CHANNEL = re.compile(
    r"(?:Channel|Ring|Tree|Coll(?:Net)?) \d+(?:/\d+)? ?: +-?\d+(?:\[\w+\])? (?:-> -?\d+(?:\[\w+\])? )?"
    r"(?:\[(?:send|receive)\] )?via (?:"
    rf"(?P<collnet>COLL)?NET/(?P<transport>{_TRANSPORT})/(?P<device>\d+)(?:\(\d+\))?(?P<flags>(?:/[A-Za-z]+(?:\([A-Z]+\))?)*)"
    r"(?P<spliced>[\w/(.:-]|\s+(?!comm )\w)?"  # the rest belongs to another line, and the end of this one is lost
    r"|(?P<local>\w*P2P/|SHM/|direct shared)(?P<mnnvl>MNNVL)?)"
)
DEVICE_LIST = re.compile(rf"NET/(?P<transport>{_TRANSPORT}) ?: Using (?P<devices>.*)")
HCA = re.compile(r"\[(\d+)\] ?([\w.+-]{1,200}):\d+/(IB|RoCE)(?![A-Za-z])")
# Each physical device, which NCCL 2.26 and newer describe while they search: virtual devices have no link layer.
PHYSICAL_DEVICE = re.compile(r"NET/IB ?: \[\d+\] ?([\w.+-]{1,200}):[\w-]{1,60}:\d+/(IB|RoCE)(?![A-Za-z])")
MERGED_DEVICE = re.compile(r"\[(\d+)\]=\{([^}]*)")
DEVICE_LIST_END = re.compile(r"\[RO\]|; OOB")
NIC = re.compile(r"\[(\d+)\] ?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
VIRTUAL_DEVICE = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
GDR_DEVICE = re.compile(rf"NET/(?P<transport>{_TRANSPORT}) ?: GPU Direct RDMA .{{0,60}}for HCA (\d+) '([\w.+-]+)'")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
OUT_OF_BAND = re.compile(r"Bootstrap ?: Using (.*)|; OOB (.*)")
OUT_OF_BAND_NIC = re.compile(r"(?:\[\d+\])?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
CHOSEN_TRANSPORT = re.compile(
    rf"(?:Using network|Assigned NET plugin|Initialized NET plugin) ({_TRANSPORT}?)(?= to comm| \[|\s*$)"
)
RANK_COUNT = re.compile(r"\bn[Rr]anks[ =](\d+)")
NODE_COUNT = re.compile(r"\bnNodes (\d+)")
# Lines with a reason why NCCL may use TCP.
HINTS = {
    "libibverbs": re.compile(r"Failed to open libibverbs"),
    "IB_DISABLE": re.compile(r"NCCL_IB_DISABLE set by environment to [1-9]"),
    "NCCL_NET": re.compile(r"NCCL_NET set (?:by environment )?to \"?Socket"),
    "no device": re.compile(r"NET/IB\w* : No device found"),
    "no provider": re.compile(r"NET/OFI No eligible providers"),
}
# The parts of a log that carry information, as bytes, each with a needle that is searched first because a plain search
# is faster than a pattern: most lines of a long log are never decoded.
_REST_OF_LINE = b"[^\r\n]{0,%d}" % MAX_MESSAGE_CHARS
KEY_PHRASES = {
    b"via ": re.compile(rb"via [A-Zd][^\r\n ]*(?: (?!comm 0x)[^\r\n ]*)*"),  # RCCL adds the communicator
    b"anks ": re.compile(rb"anks \d+(?: nNodes \d+)?"),
    b"Using ": re.compile(b"Using " + _REST_OF_LINE),
}
_STARTUP_NEEDLES = (
    b"NET plugin ",
    b"NET/IB: [",
    b"NET/IB : [",
    b"CCL version",
    b"Made virtual",
    b"for HCA ",
    b"Selected ",
    b"Failed to open lib",
)
_HINT_NEEDLES = (b"NCCL_IB_DISABLE set", b"NCCL_NET set", b": No device found", b"No eligible providers")
# Printed only while processes start, which is also when they print key phrases: a large block without new key phrases
# is not searched for these.
STARTUP_PHRASES = {
    needle: re.compile(re.escape(needle) + _REST_OF_LINE)
    for needle in (RDMA_PROBE_MARKER, *_STARTUP_NEEDLES, *_HINT_NEEDLES)
}
