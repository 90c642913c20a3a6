"""NCCL's and RCCL's log lines: which network a job's processes found, chose, and used between its nodes.

nccl_forms.py has the forms of the lines. Only a channel line proves that a network carries data: what was found or
loaded may be unused, as within one node. Lines of several processes may be spliced, and any line may be cut.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from torchyard.diagnosis import nccl_forms as forms
from torchyard.model.fabric import FabricReading, NodeFabric

_MAX_EVIDENCE_CHARS = 200
_MAX_SMALL_BYTES = 1 << 16  # blocks of a growing log
_MAX_SEEN = 2000  # of what a node has said; after that it is read again
_VERBS, _SOCKET = "IB", "Socket"
_SOCKETS = (_SOCKET, "FastSocket")
Gdr = Literal["yes", "no", "mixed", "unknown"]
Devices = dict[int, dict[str, str]]  # by number: names, and their link layers; processes may number them differently


class _Channel(NamedTuple):
    """A kind of channel to another node: transport, device, and GPUDirect if that is known."""

    net: str
    device: int
    gdr: bool | None


class _Host:
    """What the processes of one host have logged."""

    def __init__(self) -> None:
        self.channels: dict[_Channel, None] = {}
        self.collective: dict[_Channel, None] = {}  # of reductions inside the network (SHARP), beside the channels
        self.near = self.mnnvl = self.listed = self.is_named = False
        self.lines = 0
        self.hcas: Devices = {}
        self.virtual: Devices = {}
        self.nics: dict[str, Devices] = {}  # by transport
        self.provider = ""  # libfabric's
        self.hints: dict[str, None] = {}  # why it may use TCP
        self.lacks: tuple[str, ...] = ()
        self.evidence: dict[str, str] = {}

    def name_devices(self, net: str, device: int) -> list[str]:
        """The names of a device, several if NCCL merged them; none if the log does not list it."""
        if net == _SOCKET or net in self.nics:
            return list(self.nics.get(net, {}).get(device, {}))
        return [name for each in (self.virtual.get(device) or self.hcas.get(device, {})) for name in each.split("+")]

    def links(self) -> dict[str, str]:
        """The link layer of each RDMA device; empty where no list tells it."""
        return {name: link for each in self.hcas.values() for name, link in each.items()}


class NcclLog:
    """Reads logs: `feed` lines that name their hosts, or `feed_block` a node's log; `reading` is what is known."""

    def __init__(self) -> None:
        self._seen: dict[str, set[bytes]] = {}
        self._hosts: dict[str, _Host] = {}
        self._version, self._chosen, self._listed = "", "", ""
        self._out_of_band: dict[str, None] = {}
        self._ranks, self._node_count = 0, 0

    def feed(self, line: str, node: str | None = None) -> None:
        """Take one line, with any prefix. `node`: whose it is; else the line itself names its host."""
        line = forms.COLOUR.sub("", line)
        if node is not None and (told := forms.LACKS.search(line)):
            self._hosts.setdefault(node, _Host()).lacks = tuple(re.findall('"([^"]+)"', told[1]))
        if not self._version and (version := forms.VERSION.search(line)):
            self._version = version[1]
        marks = list(forms.SPEAKER.finditer(line))
        for mark, following in itertools.zip_longest(marks, marks[1:]):
            end = following.start() if following else len(line)
            name = node if node is not None else mark["host"] or ""
            host = self._hosts.setdefault(name, _Host())
            host.lines, host.is_named = host.lines + 1, node is not None
            # Where the next one begins in the middle of a word, it may have taken the last letters of this one.
            torn = following is not None and not line[end - 1].isspace()
            said = line[mark.end() : end][: forms.MAX_SAID_CHARS] + "/" * torn
            self._read(host, said, line[mark.start() : end])

    def feed_text(self, node: str, text: str) -> bool:
        """Take one line of one node's log; return whether it says something new."""
        is_mine = forms.MARK.decode() in text or forms.FACTS_MARK.decode() in text
        return is_mine and self.feed_block(node, text.encode(errors="replace") + b"\n")

    def feed_block(self, node: str, block: bytes) -> bool:
        """Take whole lines of one node's log, and return whether they say anything new; only that is read."""
        if forms.MARK not in block and forms.FACTS_MARK not in block:
            return False
        block = forms.COLOUR_BYTES.sub(b"", block) if b"\x1b" in block else block
        seen = self._seen.setdefault(node, set())
        if len(seen) > _MAX_SEEN:
            seen.clear()
        news = _find_words(forms.TELLING, block) - seen
        if news or len(block) < _MAX_SMALL_BYTES:
            news |= _find_words(forms.TELLING_FIRST, block) - seen
        seen |= news
        lines = {_find_line(block, at) for at in _find_places(block, news)} if news else ()
        for begin, end in sorted(lines):
            if forms.MARK in block[begin:end] or forms.FACTS_MARK in block[begin:end]:
                cut = "" if end < len(block) else "/"  # its process was killed while it wrote
                self.feed(block[begin:end].decode(errors="replace") + cut, node)
        return bool(news)

    def _read(self, host: _Host, said: str, line: str) -> None:
        """Take what one process has said; `line` has the name of the process too, and no prefix of other programs."""
        if channel := forms.CHANNEL.search(said):
            self._read_channel(host, channel, line)
        elif "Using" in said or "NET plugin" in said:
            self._read_choice(host, said)
        elif virtual := forms.VIRTUAL.search(said):
            host.virtual.setdefault(int(virtual[1]), {})[virtual[2]] = ""
        elif found := forms.DEVICE_OF_GDR.search(said):
            is_socket = found["net"] in _SOCKETS
            devices = host.nics.setdefault(found["net"], {}) if is_socket else host.hcas
            devices.setdefault(int(found[2]), {}).setdefault(found[3], "")
        elif provider := forms.PROVIDER.search(said):
            host.provider = provider[1]
        host.hints |= {name: None for name, hint in forms.HINTS.items() if hint.search(said)}
        if ranks := forms.RANKS.search(said):
            self._ranks = max(self._ranks, int(ranks[1]))
            nodes = forms.NODE_COUNT.search(said)
            self._node_count = max(self._node_count, int(nodes[1]) if nodes else 0)

    def _read_channel(self, host: _Host, channel: re.Match[str], line: str) -> None:
        net = channel["net"]
        if net is None:
            host.near, host.mnnvl = True, host.mnnvl or bool(channel["mnnvl"])
            return
        direct = True if "/GDRDMA" in channel["how"] else None if channel["torn"] else False
        found = _Channel(net, int(channel["device"]), direct)
        (host.collective if channel["coll"] else host.channels)[found] = None
        host.evidence.setdefault(net, line.strip()[:_MAX_EVIDENCE_CHARS])

    def _read_choice(self, host: _Host, said: str) -> None:
        if (found := forms.LIST.search(said)) and (hcas := forms.HCA.findall(found["list"])):
            self._listed = _VERBS if found["net"] == _VERBS else self._listed
            host.listed = host.listed or bool(forms.LIST_END.search(found["list"]))
            for number, name, link in hcas:
                host.hcas.setdefault(int(number), {})[name] = link
            for number, inside in forms.MERGED.findall(found["list"]):
                name = "+".join(name for _, name, _ in forms.HCA.findall(inside))
                host.virtual.setdefault(int(number), {})[name] = ""
        elif found and (nics := forms.NIC.findall(found["list"])):
            self._listed = (self._listed or _SOCKET) if found["net"] == _SOCKET else found["net"]
            for number, name in nics:
                host.nics.setdefault(found["net"], {}).setdefault(int(number), {})[name] = ""
        if found := forms.CHOSEN.search(said):
            self._chosen = found[1]
        if found := forms.OUT_OF_BAND.search(said):
            self._out_of_band |= dict.fromkeys(forms.OUT_OF_BAND_NIC.findall(found[1] or found[2] or ""))

    def reading(self) -> FabricReading:
        """What is known so far."""
        hosts = _drop_spliced(self._hosts)
        nodes = tuple(_describe_host(name, host, hosts) for name, host in hosts.items())
        return FabricReading(
            nccl=self._version,
            transport=self._name_transport(nodes),
            gdr=_join_gdr(node.gdr for node in nodes if node.transports),
            out_of_band=tuple(self._out_of_band),
            ranks=self._ranks or None,
            node_count=self._node_count or None,
            nodes=nodes,
        )

    def _name_transport(self, nodes: tuple[NodeFabric, ...]) -> str:
        """The network between the nodes: of the channels if there are any, else what was chosen, if that is known."""
        used = {name for node in nodes for name in node.transports}
        if len(used) > 1:
            return "mixed"
        links = {link for node in nodes for link in node.links}
        if used:
            return _label(used.pop(), links)
        if any(host.mnnvl for host in self._hosts.values()):
            return "mnnvl"
        if self._node_count == 1:
            return "intra-node-only"
        if any(host.near for host in self._hosts.values()):
            return "intra-node-only" if self._node_count == 0 and len(nodes) == 1 else "unknown"
        return _label(self._chosen or self._listed, links) if self._chosen or self._listed else "unknown"


def _find_words(telling: Mapping[bytes, re.Pattern[bytes]], block: bytes) -> set[bytes]:
    """What a block says, each once; a search for the plain word comes first because it is faster."""
    return {said for word, pattern in telling.items() if word in block for said in pattern.findall(block)}


def _find_places(block: bytes, news: set[bytes]) -> Iterable[int]:
    """Where each piece of news is said for the first time."""
    places = dict[bytes, int]()
    for telling in (*forms.TELLING.values(), *forms.TELLING_FIRST.values()):
        for match in telling.finditer(block):
            if match[0] in news:
                places.setdefault(match[0], match.start())
    return places.values()


def _find_line(block: bytes, at: int) -> tuple[int, int]:
    """Where the line around a place begins and ends; of a very long one, the part around it."""
    begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
    return max(begin, at - forms.MAX_SAID_CHARS), min(end if end >= 0 else len(block), at + 2 * forms.MAX_SAID_CHARS)


def _label(net: str, links: set[str]) -> str:
    if net == _VERBS:
        return "roce" if links == {"RoCE"} else "ib"
    return "socket" if net == _SOCKET else f"plugin:{net}"


def _drop_spliced(hosts: Mapping[str, _Host]) -> dict[str, _Host]:
    """The hosts without those that torn lines made up: `12host`, `ost` or none have few lines beside `host`."""
    return {
        name: host
        for name, host in hosts.items()
        if host.is_named
        or not any(
            name != other and (other.endswith(name) or name.endswith(other)) and host.lines * 4 < each.lines
            for other, each in hosts.items()
        )
    }


def _describe_host(name: str, host: _Host, others: Mapping[str, _Host]) -> NodeFabric:
    """A host's part. A host that lists no devices has those of the others, if they all list the same."""
    lists = [each for each in others.values() if each.hcas or each.nics]
    same = lists and all((each.hcas, each.nics) == (lists[0].hcas, lists[0].nics) for each in lists)
    own = host if host.hcas or host.nics or not same else lists[0]
    channels = host.channels or host.collective
    used = {name: None for each in channels for name in own.name_devices(each.net, each.device)}
    known = own.links()
    links = [known[name] for name in used if known.get(name)] or [link for link in known.values() if link]
    direct = {"yes" if each.gdr else "no" for each in channels if each.net not in _SOCKETS and each.gdr is not None}
    is_tcp = bool(channels) and all(each.net in _SOCKETS for each in channels)
    return NodeFabric(
        node=name,
        transports=tuple(dict.fromkeys(each.net for each in channels)),
        gdr="no" if is_tcp else _join_gdr(direct),
        used=tuple(sorted(used)),
        hcas=tuple(host.links()),
        is_hca_list_complete=host.listed,
        links=tuple(dict.fromkeys(links)),
        provider=host.provider,
        hints=tuple(host.hints),
        missing=host.lacks,
        nics=tuple(dict.fromkeys(name for net in host.nics.values() for each in net.values() for name in each)),
        evidence=tuple(host.evidence.values()),
    )


def _join_gdr(found: Iterable[str]) -> Gdr:
    """One word for several."""
    words = set(found) - {"unknown"}
    if not words:
        return "unknown"
    return "mixed" if len(words) > 1 else "yes" if words == {"yes"} else "no"


def read_nccl_log(lines: Iterable[str]) -> FabricReading:
    """What a whole log says."""
    log = NcclLog()
    for line in lines:
        log.feed(line)
    return log.reading()
