"""NCCL's and RCCL's log lines: which network a job's processes found, chose, and used between its nodes.

forms.py has the forms of the lines. Only a channel line proves that a network carries data: what was found or
loaded may be unused, as within one node. Lines of several processes may be spliced, and any line may be cut.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from torchyard.diagnosis.nccl import forms
from torchyard.model.fabric import FabricReading, NodeFabric

_MAX_EVIDENCE_CHARS = 200
_SMALL_BLOCK_BYTES = 1 << 16  # blocks of a growing log are smaller
_MAX_PHRASES = 2000  # remembered of a node; after that they are read again
_VERBS = "IB"
_SOCKET = "Socket"
_TCP_TRANSPORTS = (_SOCKET, "FastSocket")
Gdr = Literal["yes", "no", "mixed", "unknown"]
# Names and link layers ("" if unknown) by device number. One number may have several: processes may number differently.
Devices = dict[int, dict[str, str]]


class _Channel(NamedTuple):
    """A kind of channel to another node: transport, device, and whether it uses GPUDirect; None if that is unknown."""

    transport: str
    device: int
    has_gdr: bool | None


class _Host:
    """What the processes of one host have logged. The dicts with values None are sets that keep their order."""

    def __init__(self) -> None:
        self.channels: dict[_Channel, None] = {}
        self.collective_channels: dict[_Channel, None] = {}  # of reductions inside the network (SHARP)
        self.has_local_channel = False
        self.has_mnnvl_channel = False  # NVLink between nodes
        self.is_hca_list_complete = False
        self.is_named = False  # the caller named it, not its lines
        self.line_count = 0
        self.hcas: Devices = {}
        self.virtual_devices: Devices = {}
        self.physical_links: dict[str, str] = {}  # link layer by device name
        self.nics: dict[str, Devices] = {}  # by transport
        self.provider = ""  # libfabric's
        self.hints: dict[str, None] = {}  # why it may use TCP: keys of `forms.HINTS`
        self.missing: tuple[str, ...] = ()  # what its pod lacks for RDMA
        self.evidence: dict[str, str] = {}  # a channel line by transport

    def get_device_names(self, transport: str, device: int) -> list[str]:
        """The names of a device, several if NCCL merged them; none if the log does not list it."""
        if transport == _SOCKET or transport in self.nics:
            return list(self.nics.get(transport, {}).get(device, {}))
        names = []
        for merged_name in self.virtual_devices.get(device) or self.hcas.get(device, {}):
            names += merged_name.split("+")
        return names

    def get_link_layers(self) -> dict[str, str]:
        """The link layer of each RDMA device; "" if it is not known."""
        link_layers: dict[str, str] = {}
        for layers in self.hcas.values():
            for name, layer in layers.items():
                link_layers[name] = layer or self.physical_links.get(name, "")
        return link_layers


class NcclLogReader:
    """Read NCCL's lines from a job's logs, as they grow; `build_reading` returns what they have shown so far.

    Feed it in one of three ways:

        process_line(line)               lines of any log, which name their hosts
        process_node_line(node, text)    a line of one node's log
        process_block(node, block)       complete lines of one node's log, for logs of any size

    Blocks are searched for the key phrases of `forms` as bytes, and only lines with a new phrase are decoded, so a
    log of repeated lines costs one search. Not safe for use by several threads. Nothing is raised: a line that has no
    known form is skipped.
    """

    def __init__(self) -> None:
        self._known_phrases: dict[str, set[bytes]] = {}  # by node
        self._hosts: dict[str, _Host] = {}
        self._version = ""
        self._chosen_transport = ""
        self._listed_transport = ""
        self._out_of_band: dict[str, None] = {}
        self._rank_count = 0
        self._node_count = 0

    def process_line(self, line: str, node: str | None = None) -> None:
        """Read one line with any prefix. `node`: whose line it is; None: the line itself names its host."""
        line = forms.COLOUR.sub("", line)
        if node is not None:
            probe = forms.RDMA_PROBE.search(line)
            if probe:
                self._hosts.setdefault(node, _Host()).missing = tuple(re.findall('"([^"]+)"', probe[1]))
        if not self._version:
            version = forms.VERSION.search(line)
            self._version = version[1] if version else ""

        prefixes = list(forms.LINE_PREFIX.finditer(line))
        for prefix, following in itertools.zip_longest(prefixes, prefixes[1:]):
            end = following.start() if following else len(line)
            name = node if node is not None else prefix["host"] or ""
            host = self._hosts.setdefault(name, _Host())
            host.line_count += 1
            host.is_named = node is not None
            message = line[prefix.end() : end][: forms.MAX_MESSAGE_CHARS]
            # If the next message begins in the middle of a word, it may have overwritten the last letters of this one.
            if following is not None and not line[end - 1].isspace():
                message += "/"
            self._process_message(host, message, line[prefix.start() : end])

    def process_node_line(self, node: str, text: str) -> bool:
        """Read one line of one node's log; return whether it contains something new."""
        if forms.NCCL_MARKER.decode() not in text and forms.RDMA_PROBE_MARKER.decode() not in text:
            return False
        return self.process_block(node, text.encode(errors="replace") + b"\n")

    def process_block(self, node: str, block: bytes) -> bool:
        """Read complete lines of one node's log; return whether they contain anything new."""
        if forms.NCCL_MARKER not in block and forms.RDMA_PROBE_MARKER not in block:
            return False
        if b"\x1b" in block:
            block = forms.COLOUR_BYTES.sub(b"", block)
        known_phrases = self._known_phrases.setdefault(node, set())
        if len(known_phrases) > _MAX_PHRASES:
            known_phrases.clear()
        new_phrases = _find_phrases(forms.KEY_PHRASES, block) - known_phrases
        if new_phrases or len(block) < _SMALL_BLOCK_BYTES:
            new_phrases |= _find_phrases(forms.STARTUP_PHRASES, block) - known_phrases
        if not new_phrases:
            return False

        known_phrases |= new_phrases
        spans = {_find_line_span(block, offset) for offset in _find_first_offsets(block, new_phrases)}
        for start, end in sorted(spans):
            line = block[start:end]
            if forms.NCCL_MARKER in line or forms.RDMA_PROBE_MARKER in line:
                is_cut = end == len(block)  # its process was killed while it wrote
                self.process_line(line.decode(errors="replace") + ("/" if is_cut else ""), node)
        return True

    def _process_message(self, host: _Host, message: str, line: str) -> None:
        """Read one message of one process; `line` has its prefix too, and no prefix of other programs."""
        # In this order: a channel line is by far the most frequent one, and no message has two of these forms.
        if match := forms.CHANNEL.search(message):
            self._process_channel(host, match, line)
        elif "Using" in message or "NET plugin" in message:
            self._process_choice(host, message)
        else:
            self._process_device(host, message)
        for name, hint in forms.HINTS.items():
            if hint.search(message):
                host.hints[name] = None
        if match := forms.RANK_COUNT.search(message):
            self._rank_count = max(self._rank_count, int(match[1]))
            node_count = forms.NODE_COUNT.search(message)
            if node_count:
                self._node_count = max(self._node_count, int(node_count[1]))

    def _process_device(self, host: _Host, message: str) -> None:
        """Read a message about one device."""
        if match := forms.PHYSICAL_DEVICE.search(message):
            host.physical_links[match[1]] = match[2]
        elif match := forms.VIRTUAL_DEVICE.search(message):
            host.virtual_devices.setdefault(int(match[1]), {})[match[2]] = ""
        elif match := forms.GDR_DEVICE.search(message):
            # NCCL calls the interfaces of sockets HCAs as well.
            transport = match["transport"]
            devices = host.nics.setdefault(transport, {}) if transport in _TCP_TRANSPORTS else host.hcas
            devices.setdefault(int(match[2]), {}).setdefault(match[3], "")
        elif match := forms.PROVIDER.search(message):
            host.provider = match[1]

    def _process_channel(self, host: _Host, channel: re.Match[str], line: str) -> None:
        transport = channel["transport"]
        if transport is None:
            host.has_local_channel = True
            host.has_mnnvl_channel = host.has_mnnvl_channel or bool(channel["mnnvl"])
            return
        has_gdr: bool | None = "/GDRDMA" in channel["flags"]
        if not has_gdr and channel["spliced"]:
            has_gdr = None  # the lost end of the line may have had the flag
        channels = host.collective_channels if channel["collnet"] else host.channels
        channels[_Channel(transport, int(channel["device"]), has_gdr)] = None
        host.evidence.setdefault(transport, line.strip()[:_MAX_EVIDENCE_CHARS])

    def _process_choice(self, host: _Host, message: str) -> None:
        """Read a message that lists devices, or that names the network or the plugin that NCCL uses."""
        device_list = forms.DEVICE_LIST.search(message)
        if device_list:
            self._process_device_list(host, device_list["transport"], device_list["devices"])
        if match := forms.CHOSEN_TRANSPORT.search(message):
            self._chosen_transport = match[1]
        if match := forms.OUT_OF_BAND.search(message):
            nics = forms.OUT_OF_BAND_NIC.findall(match[1] or match[2] or "")
            self._out_of_band |= dict.fromkeys(nics)

    def _process_device_list(self, host: _Host, transport: str, devices: str) -> None:
        hcas = forms.HCA.findall(devices)
        if hcas:
            if transport == _VERBS:
                self._listed_transport = _VERBS
            host.is_hca_list_complete = host.is_hca_list_complete or bool(forms.DEVICE_LIST_END.search(devices))
            for number, name, link_layer in hcas:
                host.hcas.setdefault(int(number), {})[name] = link_layer
            for number, members in forms.MERGED_DEVICE.findall(devices):
                merged_name = "+".join(name for _, name, _ in forms.HCA.findall(members))
                host.virtual_devices.setdefault(int(number), {})[merged_name] = ""
            return
        nics = forms.NIC.findall(devices)
        if nics:
            if transport != _SOCKET:
                self._listed_transport = transport
            elif not self._listed_transport:
                self._listed_transport = _SOCKET
            for number, name in nics:
                host.nics.setdefault(transport, {}).setdefault(int(number), {})[name] = ""

    def build_reading(self) -> FabricReading:
        """What the lines have shown so far."""
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
        """The network between the nodes: that of the channels if there are any, else the chosen one if it is known."""
        transports: set[str] = set()
        link_layers: set[str] = set()
        for node in nodes:
            transports.update(node.transports)
            link_layers.update(node.links)
        if len(transports) > 1:
            return "mixed"
        if transports:
            return _format_transport(transports.pop(), link_layers)
        if any(host.has_mnnvl_channel for host in self._hosts.values()):
            return "mnnvl"
        if self._node_count == 1:
            return "intra-node-only"
        if any(host.has_local_channel for host in self._hosts.values()):
            return "intra-node-only" if self._node_count == 0 and len(nodes) == 1 else "unknown"
        transport = self._chosen_transport or self._listed_transport
        return _format_transport(transport, link_layers) if transport else "unknown"


def _find_phrases(patterns: Mapping[bytes, re.Pattern[bytes]], block: bytes) -> set[bytes]:
    """The phrases in a block, each once; the search for the needle comes first because it is faster."""
    phrases: set[bytes] = set()
    for needle, pattern in patterns.items():
        if needle in block:
            phrases.update(pattern.findall(block))
    return phrases


def _find_first_offsets(block: bytes, new_phrases: set[bytes]) -> Iterable[int]:
    """Where each of these phrases occurs first."""
    offsets: dict[bytes, int] = {}
    for pattern in (*forms.KEY_PHRASES.values(), *forms.STARTUP_PHRASES.values()):
        for match in pattern.finditer(block):
            if match[0] in new_phrases:
                offsets.setdefault(match[0], match.start())
    return offsets.values()


def _find_line_span(block: bytes, offset: int) -> tuple[int, int]:
    """Start and end of the line around an offset; of a very long line, of the part around it."""
    start = block.rfind(b"\n", 0, offset) + 1
    end = block.find(b"\n", offset)
    if end < 0:
        end = len(block)
    return max(start, offset - forms.MAX_MESSAGE_CHARS), min(end, offset + 2 * forms.MAX_MESSAGE_CHARS)


def _format_transport(transport: str, link_layers: set[str]) -> str:
    """The transport as reports name it: roce, ib, socket, or plugin:NAME."""
    if transport == _VERBS:
        return "roce" if link_layers == {"RoCE"} else "ib"
    return "socket" if transport == _SOCKET else f"plugin:{transport}"


def _drop_spliced_hosts(hosts: Mapping[str, _Host]) -> dict[str, _Host]:
    """The hosts without those that spliced lines made up: beside `host`, `12host`, `ost` and "" have few lines."""
    real_hosts = {}
    for name, host in hosts.items():
        if host.is_named or not any(_is_spliced_name(name, host, *other) for other in hosts.items()):
            real_hosts[name] = host
    return real_hosts


def _is_spliced_name(name: str, host: _Host, other_name: str, other_host: _Host) -> bool:
    """Whether a name is part of a longer or shorter one that has more than four times as many lines."""
    is_part = other_name.endswith(name) or name.endswith(other_name)
    return name != other_name and is_part and host.line_count * 4 < other_host.line_count


def _build_node_fabric(name: str, host: _Host, hosts: Mapping[str, _Host]) -> NodeFabric:
    """The network of one host. If it lists no devices, it has those of the others, if they all list the same."""
    hosts_with_devices = [other for other in hosts.values() if other.hcas or other.nics]
    device_list = host
    if hosts_with_devices and not (host.hcas or host.nics):
        first = hosts_with_devices[0]
        if all((other.hcas, other.nics) == (first.hcas, first.nics) for other in hosts_with_devices):
            device_list = first

    channels = host.channels or host.collective_channels
    used_devices: dict[str, None] = {}
    gdr_values = set()
    for channel in channels:
        used_devices |= dict.fromkeys(device_list.get_device_names(channel.transport, channel.device))
        if channel.transport not in _TCP_TRANSPORTS and channel.has_gdr is not None:
            gdr_values.add("yes" if channel.has_gdr else "no")
    is_tcp = bool(channels) and all(channel.transport in _TCP_TRANSPORTS for channel in channels)

    layer_by_device = device_list.physical_links | device_list.get_link_layers()
    link_layers = [layer_by_device[device] for device in used_devices if layer_by_device.get(device)]
    if not link_layers:
        link_layers = [layer for layer in layer_by_device.values() if layer]

    nics: dict[str, None] = {}
    for devices in host.nics.values():
        for names in devices.values():
            nics |= dict.fromkeys(names)
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
        nics=tuple(nics),
        evidence=tuple(host.evidence.values()),
    )


def _join_gdr(values: Iterable[str]) -> Gdr:
    """One value for several: `mixed` if they differ or one is; `unknown` counts only if there is no other."""
    known_values = set(values) - {"unknown"}
    if not known_values:
        return "unknown"
    if known_values == {"yes"}:
        return "yes"
    if known_values == {"no"}:
        return "no"
    return "mixed"


def parse_nccl_log(lines: Iterable[str]) -> FabricReading:
    """What a complete log shows."""
    reader = NcclLogReader()
    for line in lines:
        reader.process_line(line)
    return reader.build_reading()
