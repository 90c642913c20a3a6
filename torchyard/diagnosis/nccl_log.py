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
_SMALL_BLOCK_BYTES = 1 << 16  # blocks of a growing log
_MAX_PHRASES = 2000  # of what a node has said; after that it is read again
_VERBS, _SOCKET = "IB", "Socket"
_TCP_TRANSPORTS = (_SOCKET, "FastSocket")
Gdr = Literal["yes", "no", "mixed", "unknown"]
Devices = dict[int, dict[str, str]]  # by number: names, and their link layers; processes may number them differently


class _Channel(NamedTuple):
    """A kind of channel to another node: transport, device, and GPUDirect if that is known."""

    transport: str
    device: int
    has_gdr: bool | None


class _Host:
    """What the processes of one host have logged."""

    def __init__(self) -> None:
        self.channels: dict[_Channel, None] = {}
        self.collective_channels: dict[
            _Channel, None
        ] = {}  # of reductions inside the network (SHARP), beside the channels
        self.has_local_channel = self.has_mnnvl_channel = self.is_hca_list_complete = self.is_named = False
        self.line_count = 0
        self.hcas: Devices = {}
        self.virtual_devices: Devices = {}
        self.nics: dict[str, Devices] = {}  # by transport
        self.provider = ""  # libfabric's
        self.hints: dict[str, None] = {}  # why it may use TCP
        self.missing: tuple[str, ...] = ()
        self.evidence: dict[str, str] = {}

    def get_device_names(self, transport: str, device: int) -> list[str]:
        """The names of a device, several if NCCL merged them; none if the log does not list it."""
        if transport == _SOCKET or transport in self.nics:
            return list(self.nics.get(transport, {}).get(device, {}))
        return [
            name
            for merged_name in (self.virtual_devices.get(device) or self.hcas.get(device, {}))
            for name in merged_name.split("+")
        ]

    def get_link_layers(self) -> dict[str, str]:
        """The link layer of each RDMA device; empty where no list tells it."""
        return {name: link for layers in self.hcas.values() for name, link in layers.items()}


class NcclLogReader:
    """Reads logs: `feed` lines that name their hosts, or `feed_block` a node's log; `reading` is what is known."""

    def __init__(self) -> None:
        self._known_phrases: dict[str, set[bytes]] = {}
        self._hosts: dict[str, _Host] = {}
        self._version, self._chosen_transport, self._listed_transport = "", "", ""
        self._out_of_band: dict[str, None] = {}
        self._rank_count, self._node_count = 0, 0

    def process_line(self, line: str, node: str | None = None) -> None:
        """Take one line, with any prefix. `node`: whose it is; else the line itself names its host."""
        line = forms.COLOUR.sub("", line)
        if node is not None and (probe := forms.RDMA_PROBE.search(line)):
            self._hosts.setdefault(node, _Host()).missing = tuple(re.findall('"([^"]+)"', probe[1]))
        if not self._version and (version := forms.VERSION.search(line)):
            self._version = version[1]
        prefixes = list(forms.LINE_PREFIX.finditer(line))
        for prefix, following in itertools.zip_longest(prefixes, prefixes[1:]):
            end = following.start() if following else len(line)
            name = node if node is not None else prefix["host"] or ""
            host = self._hosts.setdefault(name, _Host())
            host.line_count, host.is_named = host.line_count + 1, node is not None
            # Where the next one begins in the middle of a word, it may have taken the last letters of this one.
            is_spliced = following is not None and not line[end - 1].isspace()
            message = line[prefix.end() : end][: forms.MAX_MESSAGE_CHARS] + "/" * is_spliced
            self._process_message(host, message, line[prefix.start() : end])

    def process_node_line(self, node: str, text: str) -> bool:
        """Take one line of one node's log; return whether it says something new."""
        is_relevant = forms.NCCL_MARKER.decode() in text or forms.RDMA_PROBE_MARKER.decode() in text
        return is_relevant and self.process_block(node, text.encode(errors="replace") + b"\n")

    def process_block(self, node: str, block: bytes) -> bool:
        """Take whole lines of one node's log, and return whether they say anything new; only that is read."""
        if forms.NCCL_MARKER not in block and forms.RDMA_PROBE_MARKER not in block:
            return False
        block = forms.COLOUR_BYTES.sub(b"", block) if b"\x1b" in block else block
        known_phrases = self._known_phrases.setdefault(node, set())
        if len(known_phrases) > _MAX_PHRASES:
            known_phrases.clear()
        new_phrases = _find_phrases(forms.KEY_PHRASES, block) - known_phrases
        if new_phrases or len(block) < _SMALL_BLOCK_BYTES:
            new_phrases |= _find_phrases(forms.STARTUP_PHRASES, block) - known_phrases
        known_phrases |= new_phrases
        lines = (
            {_find_line_span(block, offset) for offset in _find_first_offsets(block, new_phrases)}
            if new_phrases
            else ()
        )
        for start, end in sorted(lines):
            if forms.NCCL_MARKER in block[start:end] or forms.RDMA_PROBE_MARKER in block[start:end]:
                suffix = "" if end < len(block) else "/"  # its process was killed while it wrote
                self.process_line(block[start:end].decode(errors="replace") + suffix, node)
        return bool(new_phrases)

    def _process_message(self, host: _Host, message: str, line: str) -> None:
        """Take what one process has said; `line` has the name of the process too, and no prefix of other programs."""
        if channel := forms.CHANNEL.search(message):
            self._process_channel(host, channel, line)
        elif "Using" in message or "NET plugin" in message:
            self._process_choice(host, message)
        elif virtual := forms.VIRTUAL_DEVICE.search(message):
            host.virtual_devices.setdefault(int(virtual[1]), {})[virtual[2]] = ""
        elif gdr_device := forms.GDR_DEVICE.search(message):
            is_socket = gdr_device["net"] in _TCP_TRANSPORTS
            names_by_number = host.nics.setdefault(gdr_device["net"], {}) if is_socket else host.hcas
            names_by_number.setdefault(int(gdr_device[2]), {}).setdefault(gdr_device[3], "")
        elif provider := forms.PROVIDER.search(message):
            host.provider = provider[1]
        host.hints |= {name: None for name, hint in forms.HINTS.items() if hint.search(message)}
        if rank_count := forms.RANK_COUNT.search(message):
            self._rank_count = max(self._rank_count, int(rank_count[1]))
            node_count = forms.NODE_COUNT.search(message)
            self._node_count = max(self._node_count, int(node_count[1]) if node_count else 0)

    def _process_channel(self, host: _Host, channel: re.Match[str], line: str) -> None:
        transport = channel["net"]
        if transport is None:
            host.has_local_channel, host.has_mnnvl_channel = True, host.has_mnnvl_channel or bool(channel["mnnvl"])
            return
        has_gdr = True if "/GDRDMA" in channel["how"] else None if channel["torn"] else False
        new_channel = _Channel(transport, int(channel["device"]), has_gdr)
        (host.collective_channels if channel["coll"] else host.channels)[new_channel] = None
        host.evidence.setdefault(transport, line.strip()[:_MAX_EVIDENCE_CHARS])

    def _process_choice(self, host: _Host, message: str) -> None:
        if (list_match := forms.DEVICE_LIST.search(message)) and (hcas := forms.HCA.findall(list_match["list"])):
            self._listed_transport = _VERBS if list_match["net"] == _VERBS else self._listed_transport
            host.is_hca_list_complete = host.is_hca_list_complete or bool(
                forms.DEVICE_LIST_END.search(list_match["list"])
            )
            for number, name, link in hcas:
                host.hcas.setdefault(int(number), {})[name] = link
            for number, members in forms.MERGED_DEVICE.findall(list_match["list"]):
                name = "+".join(name for _, name, _ in forms.HCA.findall(members))
                host.virtual_devices.setdefault(int(number), {})[name] = ""
        elif list_match and (nics := forms.NIC.findall(list_match["list"])):
            self._listed_transport = (
                (self._listed_transport or _SOCKET) if list_match["net"] == _SOCKET else list_match["net"]
            )
            for number, name in nics:
                host.nics.setdefault(list_match["net"], {}).setdefault(int(number), {})[name] = ""
        if match := forms.CHOSEN_TRANSPORT.search(message):
            self._chosen_transport = match[1]
        if match := forms.OUT_OF_BAND.search(message):
            self._out_of_band |= dict.fromkeys(forms.OUT_OF_BAND_NIC.findall(match[1] or match[2] or ""))

    def build_reading(self) -> FabricReading:
        """What is known so far."""
        hosts = _drop_spliced_hosts(self._hosts)
        nodes = tuple(_build_node_fabric(name, host, hosts) for name, host in hosts.items())
        return FabricReading(
            nccl=self._version,
            transport=self._determine_transport(nodes),
            gdr=_join_gdr(node.gdr for node in nodes if node.transports),
            out_of_band=tuple(self._out_of_band),
            ranks=self._rank_count or None,
            node_count=self._node_count or None,
            nodes=nodes,
        )

    def _determine_transport(self, nodes: tuple[NodeFabric, ...]) -> str:
        """The network between the nodes: of the channels if there are any, else what was chosen, if that is known."""
        transports = {name for node in nodes for name in node.transports}
        if len(transports) > 1:
            return "mixed"
        link_layers = {layer for node in nodes for layer in node.links}
        if transports:
            return _format_transport(transports.pop(), link_layers)
        if any(host.has_mnnvl_channel for host in self._hosts.values()):
            return "mnnvl"
        if self._node_count == 1:
            return "intra-node-only"
        if any(host.has_local_channel for host in self._hosts.values()):
            return "intra-node-only" if self._node_count == 0 and len(nodes) == 1 else "unknown"
        return (
            _format_transport(self._chosen_transport or self._listed_transport, link_layers)
            if self._chosen_transport or self._listed_transport
            else "unknown"
        )


def _find_phrases(phrases: Mapping[bytes, re.Pattern[bytes]], block: bytes) -> set[bytes]:
    """What a block says, each once; a search for the plain word comes first because it is faster."""
    return {phrase for needle, pattern in phrases.items() if needle in block for phrase in pattern.findall(block)}


def _find_first_offsets(block: bytes, new_phrases: set[bytes]) -> Iterable[int]:
    """Where each piece of news is said for the first time."""
    offsets = dict[bytes, int]()
    for pattern in (*forms.KEY_PHRASES.values(), *forms.STARTUP_PHRASES.values()):
        for match in pattern.finditer(block):
            if match[0] in new_phrases:
                offsets.setdefault(match[0], match.start())
    return offsets.values()


def _find_line_span(block: bytes, offset: int) -> tuple[int, int]:
    """Where the line around a place begins and ends; of a very long one, the part around it."""
    start, end = block.rfind(b"\n", 0, offset) + 1, block.find(b"\n", offset)
    return max(start, offset - forms.MAX_MESSAGE_CHARS), min(
        end if end >= 0 else len(block), offset + 2 * forms.MAX_MESSAGE_CHARS
    )


def _format_transport(transport: str, link_layers: set[str]) -> str:
    if transport == _VERBS:
        return "roce" if link_layers == {"RoCE"} else "ib"
    return "socket" if transport == _SOCKET else f"plugin:{transport}"


def _drop_spliced_hosts(hosts: Mapping[str, _Host]) -> dict[str, _Host]:
    """The hosts without those that torn lines made up: `12host`, `ost` or none have few lines beside `host`."""
    return {
        name: host
        for name, host in hosts.items()
        if host.is_named
        or not any(
            name != other_name
            and (other_name.endswith(name) or name.endswith(other_name))
            and host.line_count * 4 < other_host.line_count
            for other_name, other_host in hosts.items()
        )
    }


def _build_node_fabric(name: str, host: _Host, hosts: Mapping[str, _Host]) -> NodeFabric:
    """A host's part. A host that lists no devices has those of the others, if they all list the same."""
    hosts_with_devices = [other for other in hosts.values() if other.hcas or other.nics]
    is_same_list = hosts_with_devices and all(
        (other.hcas, other.nics) == (hosts_with_devices[0].hcas, hosts_with_devices[0].nics)
        for other in hosts_with_devices
    )
    device_list = host if host.hcas or host.nics or not is_same_list else hosts_with_devices[0]
    channels = host.channels or host.collective_channels
    used_devices = {
        name: None for channel in channels for name in device_list.get_device_names(channel.transport, channel.device)
    }
    layer_by_device = device_list.get_link_layers()
    link_layers = [layer_by_device[name] for name in used_devices if layer_by_device.get(name)] or [
        layer for layer in layer_by_device.values() if layer
    ]
    gdr_values = {
        "yes" if channel.has_gdr else "no"
        for channel in channels
        if channel.transport not in _TCP_TRANSPORTS and channel.has_gdr is not None
    }
    is_tcp = bool(channels) and all(channel.transport in _TCP_TRANSPORTS for channel in channels)
    return NodeFabric(
        node=name,
        transports=tuple(dict.fromkeys(channel.transport for channel in channels)),
        gdr="no" if is_tcp else _join_gdr(gdr_values),
        used=tuple(sorted(used_devices)),
        hcas=tuple(host.get_link_layers()),
        is_hca_list_complete=host.is_hca_list_complete,
        links=tuple(dict.fromkeys(link_layers)),
        provider=host.provider,
        hints=tuple(host.hints),
        missing=host.missing,
        nics=tuple(
            dict.fromkeys(name for devices in host.nics.values() for names in devices.values() for name in names)
        ),
        evidence=tuple(host.evidence.values()),
    )


def _join_gdr(values: Iterable[str]) -> Gdr:
    """One word for several."""
    known_values = set(values) - {"unknown"}
    if not known_values:
        return "unknown"
    return "mixed" if len(known_values) > 1 else "yes" if known_values == {"yes"} else "no"


def parse_nccl_log(lines: Iterable[str]) -> FabricReading:
    """What a whole log says."""
    log = NcclLogReader()
    for line in lines:
        log.process_line(line)
    return log.build_reading()
