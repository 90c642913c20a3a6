"""Judge one file of a checkpoint by its own format, from a few reads: its content is neither executed nor believed.

Only what a format proves is complete. A file is incomplete if its format shows that bytes are missing; everything
else is not verified.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import Any, BinaryIO, Dict, List, NamedTuple, Optional, Tuple

from .pickle_scan import Global, PickleScan, PickleScanError, TruncatedPickleError, scan_pickle

Json = Any
MAX_METADATA_BYTES = 8 << 20  # of one file: headers and indices of checkpoints are much shorter
CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_PICKLE_SUFFIXES = (".pkl", ".pickle")
_MAX_PARSED_JSON_BYTES = 1 << 20
_MAX_STEP_PICKLE_BYTES = 1 << 20
_STEP_KEYS = ("global_step", "step", "iteration")
_ZIP_LOCAL = b"PK\x03\x04"
_ZIP_ENTRY = struct.Struct("<4s6H3I5H2I")
_ZIP_END = struct.Struct("<4s4H2IH")
_ZIP64_LOCATOR = struct.Struct("<4sIQI")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q")
_ZIP_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_MAX_16 = 0xFFFF
_MAX_32 = 0xFFFFFFFF
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # the first object of a file that torch.save wrote without zip
_TORCH_MAGIC_HEAD = b"\x8a\x0a" + _TORCH_MAGIC.to_bytes(10, "little")
_STORAGE_BYTES = {  # of an element, by the name of torch's class
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "UntypedStorage": 1,
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "QInt32Storage": 4,
}


class IncompleteError(Exception):
    """Bytes or files of a checkpoint are missing; the text states which."""


class UnverifiedError(Exception):
    """A checkpoint can be judged neither complete nor incomplete; the text states why."""


class FileContent(NamedTuple):
    """What a complete file is.

    format: such as `torch`, `safetensors`.
    step: of the training, as the content states it; None if it does not.
    """

    format: str
    step: Optional[int] = None


def read_file_content(path: str, *, needs_step: bool) -> FileContent:
    """Judge a file; return its format if it is complete. Its step is read only if it is needed.

    Raises IncompleteError, UnverifiedError, or OSError if it cannot be read.
    """
    with _open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        return _read_content(file, os.path.basename(path), size, needs_step=needs_step)


def read_json(path: str) -> Json:
    """Parse a JSON file. Raises IncompleteError, UnverifiedError for a file that is too long, or OSError."""
    with _open_file(path) as file:
        return _parse_json(_read_head(file, os.path.basename(path)), os.path.basename(path))


def read_text(path: str, *, max_bytes: int) -> str:
    """The first bytes of a file. Raises UnverifiedError for what is not a file, or OSError."""
    with _open_file(path) as file:
        return _read_bytes(file, max_bytes).decode("utf-8", "replace")


def read_dcp_files(path: str) -> Dict[str, int]:
    """The files that a `.metadata` of torch.distributed.checkpoint names, with the bytes that each must have.

    Raises IncompleteError, UnverifiedError for a file that is too long or unknown, or OSError.
    """
    with _open_file(path) as file:
        data = _read_head(file, ".metadata")
    sizes: Dict[str, int] = {}
    try:
        scan = scan_pickle(data, field="relative_path")
    except TruncatedPickleError:
        raise IncompleteError(".metadata ends too early") from None
    except PickleScanError:
        if data.endswith(b"\0"):  # a pickle ends with its last opcode; a file that was not written whole, with zeros
            raise IncompleteError(".metadata ends in zeros") from None
        raise UnverifiedError(".metadata has an unknown format") from None
    for fields in scan.fields:
        offset = fields.get("offset")
        length = fields.get("length")
        if not isinstance(offset, int) or not isinstance(length, int):
            raise UnverifiedError(".metadata is of an unknown version")
        name = fields["relative_path"]
        sizes[name] = max(sizes.get(name, 0), offset + length)
    if not sizes:
        raise UnverifiedError(".metadata names no files")
    return sizes


def read_torch_fields(path: str) -> Dict[str, Any]:
    """The numbers and texts at the top of what torch.save wrote as a zip; empty if they cannot be read."""
    try:
        with _open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            return _read_zip_fields(file, _read_zip_entries(file, os.path.basename(path), size))
    except (OSError, IncompleteError, UnverifiedError):
        return {}


def _open_file(path: str) -> BinaryIO:
    """Open a regular file; a pipe or a device with the name of a checkpoint must not block the reader."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnverifiedError("%s is not a regular file" % os.path.basename(path))
    return os.fdopen(fd, "rb", buffering=0)


def _read_content(file: BinaryIO, name: str, size: int, *, needs_step: bool) -> FileContent:
    if size == 0:
        raise IncompleteError("%s is empty" % name)
    head = file.read(32)
    if name.endswith(".safetensors"):
        _check_safetensors(file, name, size)
        return FileContent("safetensors")
    if name.endswith(".json"):
        _check_json(file, name, size)
        return FileContent("json")
    if head.startswith(_ZIP_LOCAL):
        entries = _read_zip_entries(file, name, size)
        return FileContent("torch", _find_step(_read_zip_fields(file, entries)) if needs_step else None)
    if _TORCH_MAGIC_HEAD in head:
        return _read_legacy_torch(file, name, size)
    if head[:1] == b"\x80" and name.endswith((*CHECKPOINT_SUFFIXES, *_PICKLE_SUFFIXES)):
        return _read_pickle(file, name, size)
    if not head.strip(b"\0"):
        raise IncompleteError("%s begins with zeros" % name)
    if _ZIP_LOCAL.startswith(head) or (b"\x80\x02" + _TORCH_MAGIC_HEAD).startswith(head):
        raise IncompleteError("%s ends after %d bytes" % (name, size))
    raise UnverifiedError("%s has an unknown format" % name)


def _find_step(fields: Dict[str, Any]) -> Optional[int]:
    for key in _STEP_KEYS:
        step = fields.get(key)
        if type(step) is int and step >= 0:
            return step
    return None


def _read_head(file: BinaryIO, name: str) -> bytes:
    """The whole file. Raises UnverifiedError if it is longer than `MAX_METADATA_BYTES`."""
    data = _read_bytes(file, MAX_METADATA_BYTES + 1)
    if len(data) > MAX_METADATA_BYTES:
        raise UnverifiedError("%s is longer than %d MiB and is not read" % (name, MAX_METADATA_BYTES >> 20))
    return data


def _read_bytes(file: BinaryIO, size: int) -> bytes:
    """Up to `size` bytes, fewer at the end of the file: a file without a buffer may return fewer at once."""
    blocks = []
    while size > 0:
        block = file.read(min(size, 1 << 20))
        if not block:
            break
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return _read_bytes(file, size)


# --- JSON and safetensors


def _check_json(file: BinaryIO, name: str, size: int) -> None:
    """A long one, such as a tokenizer, is complete if it ends with a line that closes the outermost level."""
    if size <= _MAX_PARSED_JSON_BYTES:
        _parse_json(_read_at(file, 0, size), name)
        return
    tail = _read_at(file, size - 64, 64).rstrip()
    if not tail.endswith((b"}", b"]")):
        raise IncompleteError("%s is not valid JSON" % name)
    if not tail.endswith((b"\n}", b"\n]")):
        raise UnverifiedError("%s is longer than %d MiB and is not read" % (name, _MAX_PARSED_JSON_BYTES >> 20))


def _parse_json(data: bytes, name: str) -> Json:
    try:
        return json.loads(data.decode("utf-8"), parse_int=_parse_int)
    except (ValueError, RecursionError):
        raise IncompleteError("%s is not valid JSON" % name) from None


def _parse_int(digits: str) -> int:
    """A number of a usual length: older versions of Python need hours for one with a million digits."""
    if len(digits) > 30:
        raise ValueError(digits[:30])
    return int(digits)


def _check_safetensors(file: BinaryIO, name: str, size: int) -> None:
    length_bytes = _read_at(file, 0, 8)
    header_bytes = int.from_bytes(length_bytes, "little")
    if len(length_bytes) < 8 or 8 + header_bytes > size:
        raise IncompleteError("%s ends in its header" % name)
    if header_bytes > MAX_METADATA_BYTES:
        raise UnverifiedError("the header of %s is longer than %d MiB" % (name, MAX_METADATA_BYTES >> 20))
    header = _parse_json(_read_at(file, 8, header_bytes), "the header of %s" % name)
    if not isinstance(header, dict):
        raise IncompleteError("the header of %s is not valid" % name)
    data_bytes = 0
    for key, tensor in header.items():
        if key == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
            raise IncompleteError("the header of %s is not valid" % name)
        data_bytes = max(data_bytes, offsets[1])
    expected_bytes = 8 + header_bytes + data_bytes
    if size != expected_bytes:
        raise IncompleteError("%s has %d of %d bytes" % (name, size, expected_bytes))


# --- what torch.save writes


class _ZipEntry(NamedTuple):
    """An entry of a zip file: its name, whether it is stored uncompressed, its bytes, and where its header begins."""

    name: bytes
    is_stored: bool
    size: int
    offset: int


def _read_zip_entries(file: BinaryIO, name: str, size: int) -> List[_ZipEntry]:
    """The entries of the central directory, all of which lie before it. Raises IncompleteError or UnverifiedError."""
    end_offset, directory_bytes, directory_offset, count = _read_zip_end(file, name, size)
    if directory_offset + directory_bytes != end_offset:
        raise IncompleteError("the directory of the zip %s is incomplete" % name)
    if directory_bytes > MAX_METADATA_BYTES:
        raise UnverifiedError("the directory of the zip %s is longer than %d MiB" % (name, MAX_METADATA_BYTES >> 20))
    directory = _read_at(file, directory_offset, directory_bytes)
    entries = []
    position = 0
    try:
        while position < len(directory):
            entry, position = _parse_zip_entry(directory, position)
            if entry.offset + _ZIP_LOCAL_HEADER.size + len(entry.name) + entry.size > directory_offset:
                raise IncompleteError("an entry of the zip %s lies outside the file" % name)
            entries.append(entry)
    except (struct.error, ValueError):
        raise IncompleteError("the directory of the zip %s is not valid" % name) from None
    if len(directory) != directory_bytes or len(entries) != count or not entries:
        raise IncompleteError("the directory of the zip %s is incomplete" % name)
    return entries


def _read_zip_end(file: BinaryIO, name: str, size: int) -> Tuple[int, int, int, int]:
    """Where the records at the end begin; the directory's bytes, its offset, and the number of its entries."""
    tail_offset = max(size - _ZIP_END.size - _MAX_16, 0)
    tail = _read_at(file, tail_offset, size - tail_offset)
    index = tail.rfind(b"PK\x05\x06")
    if index < 0 or len(tail) - index < _ZIP_END.size:
        raise IncompleteError("the zip %s has no end" % name)
    fields = _ZIP_END.unpack_from(tail, index)
    if index + _ZIP_END.size + fields[7] != len(tail):
        raise IncompleteError("the end of the zip %s is incomplete" % name)
    end_offset = tail_offset + index
    count = fields[4]
    directory_bytes = fields[5]
    directory_offset = fields[6]
    # torch writes the end of large files, zip64, in every file: the numbers of the usual end may then be valid, too.
    locator = _read_at(file, max(end_offset - _ZIP64_LOCATOR.size, 0), _ZIP64_LOCATOR.size)
    if len(locator) == _ZIP64_LOCATOR.size and locator.startswith(b"PK\x06\x07"):
        end_offset = min(_ZIP64_LOCATOR.unpack(locator)[2], size)
        record = _read_at(file, end_offset, _ZIP64_END.size)
        if len(record) < _ZIP64_END.size or not record.startswith(b"PK\x06\x06"):
            raise IncompleteError("the end of the zip %s is incomplete" % name)
        zip64_fields = _ZIP64_END.unpack(record)
        count = zip64_fields[7]
        directory_bytes = zip64_fields[8]
        directory_offset = zip64_fields[9]
    return end_offset, directory_bytes, directory_offset, count


def _parse_zip_entry(directory: bytes, position: int) -> Tuple[_ZipEntry, int]:
    """The entry at `position`, and the position after it. Raises struct.error or ValueError."""
    fields = _ZIP_ENTRY.unpack_from(directory, position)
    if fields[0] != b"PK\x01\x02":
        raise ValueError("no entry")
    name_offset = position + _ZIP_ENTRY.size
    extra_offset = name_offset + fields[10]
    comment_offset = extra_offset + fields[11]
    size = fields[8]
    sizes = [fields[9], size, fields[16]]  # in the order of the zip64 field
    extra = directory[extra_offset:comment_offset]
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1:
            values = list(struct.unpack_from("<%dQ" % (min(length, len(extra) - 4) // 8), extra, 4))
            sizes = [values.pop(0) if number == _MAX_32 and values else number for number in sizes]
        extra = extra[4 + length :]
    entry = _ZipEntry(directory[name_offset:extra_offset], fields[4] == 0, sizes[1], sizes[2])
    return entry, comment_offset + fields[12]


def _read_zip_fields(file: BinaryIO, entries: List[_ZipEntry]) -> Dict[str, Any]:
    """The numbers and texts at the top of the object in the zip; empty if it has none, or is long."""
    for entry in entries:
        if entry.name.rpartition(b"/")[2] != b"data.pkl" or not entry.is_stored or entry.size > _MAX_STEP_PICKLE_BYTES:
            continue
        header = _read_at(file, entry.offset, _ZIP_LOCAL_HEADER.size)
        if len(header) < _ZIP_LOCAL_HEADER.size:
            return {}
        fields = _ZIP_LOCAL_HEADER.unpack(header)
        data = _read_at(file, entry.offset + _ZIP_LOCAL_HEADER.size + fields[9] + fields[10], entry.size)
        try:
            return scan_pickle(data).top_pairs
        except (TruncatedPickleError, PickleScanError):
            return {}
    return {}


def _read_legacy_torch(file: BinaryIO, name: str, size: int) -> FileContent:
    """Three pickles with facts, the object, the keys of its storages, and the storages: a count, then the elements."""
    data = _read_at(file, 0, MAX_METADATA_BYTES)
    try:
        magic = scan_pickle(data)
        protocol = scan_pickle(data, magic.end)
        system = scan_pickle(data, protocol.end)
        content = scan_pickle(data, system.end)
        keys = scan_pickle(data, content.end)
    except TruncatedPickleError:
        if size > len(data):
            raise UnverifiedError("the pickle in %s is too long to be read" % name) from None
        raise IncompleteError("%s ends in its pickle" % name) from None
    except PickleScanError:
        raise UnverifiedError("the pickle in %s cannot be read" % name) from None
    expected_bytes = keys.end + _count_storage_bytes(content, keys, name)
    if size < expected_bytes:
        raise IncompleteError("%s has %d of %d bytes" % (name, size, expected_bytes))
    return FileContent("torch-legacy", _find_step(content.top_pairs))


def _count_storage_bytes(content: PickleScan, keys: PickleScan, name: str) -> int:
    """The bytes of all storages. Raises UnverifiedError if one has an unknown type or size."""
    sizes: Dict[Any, int] = {}
    for reference in content.references:
        if not isinstance(reference, tuple) or len(reference) < 5 or reference[0] != "storage":
            continue
        kind, key, count = reference[1], reference[2], reference[4]
        element_bytes = _STORAGE_BYTES.get(kind.name) if isinstance(kind, Global) else None
        if element_bytes is None or not isinstance(key, str) or not isinstance(count, int):
            raise UnverifiedError("%s has storages of an unknown type" % name)
        sizes[key] = max(sizes.get(key, 0), 8 + count * element_bytes)
    if not all(isinstance(key, str) and key in sizes for key in keys.top_items):
        raise UnverifiedError("%s has storages of an unknown type" % name)
    return sum(sizes[key] for key in keys.top_items)


def _read_pickle(file: BinaryIO, name: str, size: int) -> FileContent:
    """A pickle that is the whole file."""
    file.seek(0)
    try:
        scan = scan_pickle(_read_head(file, name))
    except TruncatedPickleError:
        raise IncompleteError("%s ends in its pickle" % name) from None
    except PickleScanError:
        raise UnverifiedError("the pickle %s cannot be read" % name) from None
    if scan.end != size:
        raise UnverifiedError("%s has more than a pickle" % name)
    return FileContent("pickle", _find_step(scan.top_pairs))
