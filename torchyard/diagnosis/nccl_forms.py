"""The forms of NCCL's and RCCL's log lines, as regular expressions.

They are those of NCCL 2.4 to 2.30 (src/debug.cc, init.cc, transport/net*.cc, coll_net.cc, p2p.cc), of RCCL, and of the
plugins that log through NCCL: libfabric's, NVIDIA's with SHARP, Google's.
"""

import re

MARK = b"CCL "  # in every line that has one of these forms
FACTS_MARK = b'{"torchyard_rdma": {"lacks": ['  # a pod's own line, before its processes start (host/rdma_facts.py)
LACKS = re.compile(rf'{re.escape(FACTS_MARK.decode())}((?:"[^"\\]{{1,400}}"(?:, )?){{0,5}})\]')
MAX_SAID_CHARS = 4000  # of one process's line
COLOUR_BYTES = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
COLOUR = re.compile(COLOUR_BYTES.pattern.decode())
# The host's name may have been replaced by `<name>`. A time of day (`12:30:45 [0] NCCL INFO`) is no host.
SPEAKER = re.compile(
    r"(?:(?P<host><[\w.-]{1,99}>|(?!\d+:)[\w.-]{1,253}):\d{1,10}(?::\d{1,10})? \[-?\d{1,4}\] "
    r"(?:(?:(?!NCCL )[^\[\]]){1,300}?:\d{1,5} (?:\([^()]{1,99}\) )?)?)?NCCL (?:INFO|WARN|ATTN|TRACE) "
)
VERSION = re.compile(r"\bR?N?CCL version ?:? ?(\d+(?:\.\d+)+(?:\+[a-z]+\d+(?:\.\d+)*)?)")
_NET = r"[\w.+-]+(?: [\w.+-]+)*"  # a plugin's name may have spaces
CHANNEL = re.compile(
    r"(?:Channel|Ring|Tree|Coll(?:Net)?) \d+(?:/\d+)? ?: +-?\d+(?:\[\w+\])? (?:-> -?\d+(?:\[\w+\])? )?"
    r"(?:\[(?:send|receive)\] )?via (?:"
    rf"(?P<coll>COLL)?NET/(?P<net>{_NET})/(?P<device>\d+)(?:\(\d+\))?(?P<how>(?:/[A-Za-z]+(?:\([A-Z]+\))?)*)"
    r"(?P<torn>[\w/(.:-]|\s+(?!comm )\w)?"  # what follows is of another line, and the end of this one is lost
    r"|(?P<near>\w*P2P/|SHM/|direct shared)(?P<mnnvl>MNNVL)?)"
)
LIST = re.compile(rf"NET/(?P<net>{_NET}) ?: Using (?P<list>.*)")
HCA = re.compile(r"\[(\d+)\] ?([\w.+-]{1,200}):\d+/(IB|RoCE)(?![A-Za-z])")
MERGED = re.compile(r"\[(\d+)\]=\{([^}]*)")
LIST_END = re.compile(r"\[RO\]|; OOB")
NIC = re.compile(r"\[(\d+)\] ?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
VIRTUAL = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
DEVICE_OF_GDR = re.compile(rf"NET/(?P<net>{_NET}) ?: GPU Direct RDMA .{{0,60}}for HCA (\d+) '([\w.+-]+)'")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
OUT_OF_BAND = re.compile(r"Bootstrap ?: Using (.*)|; OOB (.*)")
OUT_OF_BAND_NIC = re.compile(r"(?:\[\d+\])?([\w.@-]{1,64}):[\w.:%@-]{1,64}<\d+>")
CHOSEN = re.compile(rf"(?:Using network|Assigned NET plugin|Initialized NET plugin) ({_NET}?)(?= to comm| \[|\s*$)")
RANKS = re.compile(r"\bn[Rr]anks[ =](\d+)")
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
_REST = b"[^\r\n]{0,%d}" % MAX_SAID_CHARS
TELLING = {
    b"via ": re.compile(rb"via [A-Zd][^\r\n ]*(?: (?!comm 0x)[^\r\n ]*)*"),  # RCCL adds the communicator
    b"anks ": re.compile(rb"anks \d+(?: nNodes \d+)?"),
    b"Using ": re.compile(b"Using " + _REST),
}
# What processes say only while they start, as they do the other things.
_FIRST_WORDS = (b"NET plugin ", b"CCL version", b"Made virtual", b"for HCA ", b"Selected ", b"Failed to open lib")
_HINT_WORDS = (b"NCCL_IB_DISABLE set", b"NCCL_NET set", b": No device found", b"No eligible providers")
TELLING_FIRST = {word: re.compile(re.escape(word) + _REST) for word in (FACTS_MARK, *_FIRST_WORDS, *_HINT_WORDS)}
