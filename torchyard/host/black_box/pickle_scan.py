"""Scan a pickle without executing it: no class is imported, no object is built, and no size in it is believed.

The scan is the stack machine of a pickle in which everything but numbers, texts and short tuples of them is opaque. It
therefore needs little memory, cannot recurse, and reads any bytes in a time that is proportional to their number.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

_MAX_INT_BYTES = 8  # of a number that is read: nothing in a checkpoint needs a longer one
_MAX_TUPLE_ITEMS = 16
_MARK = object()
# The scan may run in a rank: it pauses between slices, so that it holds the interpreter's lock half of the time.
_SLICE_OPCODES = 2000
_PAUSE_S = 0.002


class _Opaque:
    """Any object of the pickle that the scan does not keep."""


OPAQUE = _Opaque()


class Global(NamedTuple):
    """A class or function that the pickle names."""

    module: str
    name: str


class PickleScan(NamedTuple):
    """What a pickle contains.

    end: the offset after its last byte.
    value: its object, if that is a number, a text or a short tuple of them; else OPAQUE.
    top_pairs: the texts that are keys of its object, if that is a dictionary, and their values.
    top_items: the items of its object, if that is a list.
    references: the persistent ids, as torch writes them for storages: short tuples.
    fields: each dictionary in which the key that the caller has requested is a text.
    """

    end: int
    value: Any
    top_pairs: Dict[str, Any]
    top_items: List[Any]
    references: List[Any]
    fields: List[Dict[str, Any]]


class TruncatedPickleError(Exception):
    """The bytes end before the pickle does."""


class PickleScanError(Exception):
    """The bytes are not a pickle."""


def scan_pickle(data: bytes, offset: int = 0, *, field: str = "") -> PickleScan:
    """Scan the pickle that begins at `offset`, and collect the dictionaries with the key `field`.

    Raises TruncatedPickleError if `data` is too short, and PickleScanError for anything that is not a pickle.
    """
    machine = _Machine(data, offset, field)
    try:
        machine.run()
    except (IndexError, struct.error) as error:
        if machine.position >= len(data):
            raise TruncatedPickleError from error
        raise PickleScanError("an opcode has too few arguments") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleScanError("the opcodes do not fit together") from error
    return PickleScan(
        machine.position, machine.value, machine.top_pairs, machine.top_items, machine.references, machine.fields
    )


class _Machine:
    """The stack machine. `run` ends at STOP, with `position` after it, or raises an error that depends on the bytes."""

    def __init__(self, data: bytes, offset: int, field: str) -> None:
        self.position = offset
        self.value: Any = OPAQUE
        self.top_pairs: Dict[str, Any] = {}
        self.top_items: List[Any] = []
        self.references: List[Any] = []
        self.fields: List[Dict[str, Any]] = []
        self._data = data
        self._field = field
        self._stack: List[Any] = []
        self._memo: Dict[int, Any] = {}

    def run(self) -> None:
        """Scan to the end of the pickle."""
        while not self._run_slice():
            time.sleep(_PAUSE_S)

    def _run_slice(self) -> bool:
        """Execute at most `_SLICE_OPCODES` opcodes; return whether the last one was STOP.

        IndexError, KeyError and ValueError are those of a file that is not a pickle, or is cut off.
        """
        for _ in range(_SLICE_OPCODES):
            code = self._data[self.position]
            self.position += 1
            if code == _STOP:
                self.value = self._stack.pop()
                return True
            opcode = _OPCODES[code]
            if opcode.read is None:
                opcode.apply(self, None)
            else:
                opcode.apply(self, opcode.read(self))
        return False

    # --- arguments

    def read(self, size: int) -> bytes:
        start = self.position
        self.position = start + size
        if self.position > len(self._data):
            raise IndexError(size)
        return self._data[start : self.position]

    def read_1(self) -> int:
        return self.read(1)[0]

    def read_2(self) -> int:
        return int.from_bytes(self.read(2), "little")

    def read_4(self) -> int:
        return int.from_bytes(self.read(4), "little")

    def read_8(self) -> int:
        return int.from_bytes(self.read(8), "little")

    def read_signed(self) -> int:
        return int.from_bytes(self.read(4), "little", signed=True)

    def read_float(self) -> float:
        return float(struct.unpack(">d", self.read(8))[0])

    def read_line(self) -> bytes:
        end = self._data.find(b"\n", self.position)
        if end < 0:
            self.position = len(self._data)
            raise IndexError
        return self.read(end + 1 - self.position)[:-1]

    def read_lines(self) -> Global:
        module = self.read_line()
        return Global(module.decode("utf-8", "replace"), self.read_line().decode("utf-8", "replace"))

    def read_number_line(self) -> Any:
        digits = self.read_line().rstrip(b"L")
        return int(digits) if len(digits) <= 2 * _MAX_INT_BYTES else OPAQUE

    def read_bytes_1(self) -> bytes:
        return self.read(self.read_1())

    def read_bytes_4(self) -> bytes:
        return self.read(self.read_4())

    def read_bytes_8(self) -> bytes:
        return self.read(self.read_8())

    # --- actions

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_opaque(self, _: Any) -> None:
        self._stack.append(OPAQUE)

    def push_none(self, _: Any) -> None:
        self._stack.append(None)

    def push_true(self, _: Any) -> None:
        self._stack.append(True)

    def push_false(self, _: Any) -> None:
        self._stack.append(False)

    def push_empty_tuple(self, _: Any) -> None:
        self._stack.append(())

    def push_long(self, digits: bytes) -> None:
        self.push(int.from_bytes(digits, "little", signed=True) if len(digits) <= _MAX_INT_BYTES else OPAQUE)

    def push_text(self, text: bytes) -> None:
        self.push(text.decode("utf-8", "replace"))

    def push_copy(self, _: Any) -> None:
        self.push(self._stack[-1])

    def push_mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def skip(self, _: Any) -> None:
        """An opcode that changes nothing that the scan keeps."""

    def pop(self, _: Any) -> None:
        self._stack.pop()

    def pop_to_mark(self, _: Any = None) -> List[Any]:
        stack = self._stack
        index = len(stack) - 1
        while stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise ValueError("no mark")
        items = stack[index + 1 :]
        del stack[index:]
        return items

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def put(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def get(self, key: int) -> None:
        self.push(self._memo[key])

    def replace_to_mark(self, _: Any) -> None:
        """A list, a set or an object: it replaces its items."""
        self.pop_to_mark()
        self.push(OPAQUE)

    def replace_2(self, _: Any) -> None:
        """An object: it replaces its class, or what is called, and the arguments."""
        self._stack.pop()
        self._stack.pop()
        self.push(OPAQUE)

    def replace_3(self, _: Any) -> None:
        self._stack.pop()
        self.replace_2(None)

    def build_tuple(self, _: Any) -> None:
        self._push_tuple(self.pop_to_mark())

    def build_tuple_1(self, _: Any) -> None:
        self._push_tuple([self._stack.pop()])

    def build_tuple_2(self, _: Any) -> None:
        second = self._stack.pop()
        self._push_tuple([self._stack.pop(), second])

    def build_tuple_3(self, _: Any) -> None:
        third = self._stack.pop()
        second = self._stack.pop()
        self._push_tuple([self._stack.pop(), second, third])

    def build_dict(self, _: Any) -> None:
        items = self.pop_to_mark()
        self.push(OPAQUE)
        self._add_pairs(items)

    def build_global(self, _: Any) -> None:
        name = self._stack.pop()
        module = self._stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a global without a name")
        self.push(Global(module, name))

    def set_item(self, _: Any) -> None:
        value = self._stack.pop()
        key = self._stack.pop()
        self._add_pairs([key, value])

    def set_items(self, _: Any) -> None:
        self._add_pairs(self.pop_to_mark())

    def append(self, _: Any) -> None:
        self._add_items([self._stack.pop()])

    def append_items(self, _: Any) -> None:
        self._add_items(self.pop_to_mark())

    def resolve_reference(self, _: Any) -> None:
        self.references.append(self._stack.pop())
        self.push(OPAQUE)

    def _push_tuple(self, items: List[Any]) -> None:
        """Push the tuple without the tuples in it, so that no value is deeper than one level."""
        is_short = len(items) <= _MAX_TUPLE_ITEMS
        self.push(tuple(_flatten(item) for item in items) if is_short else OPAQUE)

    def _add_items(self, items: List[Any]) -> None:
        if len(self._stack) == 1:
            self.top_items += [_flatten(item) for item in items]

    def _add_pairs(self, items: List[Any]) -> None:
        """Keep the keys and values of the dictionary on the stack, if it is requested or the pickle's own object."""
        is_top = len(self._stack) == 1
        if not is_top and not (self._field and self._field in items):
            return
        pairs = {}
        for index in range(0, len(items) - 1, 2):
            if isinstance(items[index], str):
                pairs[items[index]] = _flatten(items[index + 1])
        if is_top:
            self.top_pairs.update(pairs)
        if isinstance(pairs.get(self._field), str):
            self.fields.append(pairs)


def _flatten(item: Any) -> Any:
    """The item as a part of a kept value; OPAQUE for a tuple."""
    return OPAQUE if type(item) is tuple else item


class _Opcode(NamedTuple):
    """How the argument of an opcode is read, None if it has none, and what is done with it."""

    read: Optional[Callable[[_Machine], Any]]
    apply: Callable[[_Machine, Any], Any]


_STOP = ord(".")
_OPCODES_BY_CHARACTER: Dict[str, Tuple[Optional[Callable[[_Machine], Any]], Callable[[_Machine, Any], Any]]] = {
    "(": (None, _Machine.push_mark),
    ")": (None, _Machine.push_empty_tuple),
    "0": (None, _Machine.pop),
    "1": (None, _Machine.pop_to_mark),
    "2": (None, _Machine.push_copy),
    "B": (_Machine.read_bytes_4, _Machine.push_opaque),
    "C": (_Machine.read_bytes_1, _Machine.push_opaque),
    "F": (_Machine.read_line, _Machine.push_opaque),
    "G": (_Machine.read_float, _Machine.push),
    "I": (_Machine.read_number_line, _Machine.push),
    "J": (_Machine.read_signed, _Machine.push),
    "K": (_Machine.read_1, _Machine.push),
    "L": (_Machine.read_number_line, _Machine.push),
    "M": (_Machine.read_2, _Machine.push),
    "N": (None, _Machine.push_none),
    "P": (_Machine.read_line, _Machine.push_opaque),
    "Q": (None, _Machine.resolve_reference),
    "R": (None, _Machine.replace_2),
    "S": (_Machine.read_line, _Machine.push_text),
    "T": (_Machine.read_bytes_4, _Machine.push_text),
    "U": (_Machine.read_bytes_1, _Machine.push_text),
    "V": (_Machine.read_line, _Machine.push_text),
    "X": (_Machine.read_bytes_4, _Machine.push_text),
    "]": (None, _Machine.push_opaque),
    "a": (None, _Machine.append),
    "b": (None, _Machine.pop),  # the state of an object, which stays on the stack
    "c": (_Machine.read_lines, _Machine.push),
    "d": (None, _Machine.build_dict),
    "e": (None, _Machine.append_items),
    "g": (_Machine.read_number_line, _Machine.get),
    "h": (_Machine.read_1, _Machine.get),
    "i": (_Machine.read_lines, _Machine.replace_to_mark),
    "j": (_Machine.read_4, _Machine.get),
    "l": (None, _Machine.replace_to_mark),
    "o": (None, _Machine.replace_to_mark),
    "p": (_Machine.read_number_line, _Machine.put),
    "q": (_Machine.read_1, _Machine.put),
    "r": (_Machine.read_4, _Machine.put),
    "s": (None, _Machine.set_item),
    "t": (None, _Machine.build_tuple),
    "u": (None, _Machine.set_items),
    "}": (None, _Machine.push_opaque),
    "\x80": (_Machine.read_1, _Machine.skip),  # the protocol
    "\x81": (None, _Machine.replace_2),
    "\x82": (_Machine.read_1, _Machine.push_opaque),
    "\x83": (_Machine.read_2, _Machine.push_opaque),
    "\x84": (_Machine.read_4, _Machine.push_opaque),
    "\x85": (None, _Machine.build_tuple_1),
    "\x86": (None, _Machine.build_tuple_2),
    "\x87": (None, _Machine.build_tuple_3),
    "\x88": (None, _Machine.push_true),
    "\x89": (None, _Machine.push_false),
    "\x8a": (_Machine.read_bytes_1, _Machine.push_long),
    "\x8b": (_Machine.read_bytes_4, _Machine.push_long),
    "\x8c": (_Machine.read_bytes_1, _Machine.push_text),
    "\x8d": (_Machine.read_bytes_8, _Machine.push_text),
    "\x8e": (_Machine.read_bytes_8, _Machine.push_opaque),
    "\x8f": (None, _Machine.push_opaque),
    "\x90": (None, _Machine.pop_to_mark),
    "\x91": (None, _Machine.replace_to_mark),
    "\x92": (None, _Machine.replace_3),
    "\x93": (None, _Machine.build_global),
    "\x94": (None, _Machine.memoize),
    "\x95": (_Machine.read_8, _Machine.skip),  # the size of a frame
    "\x96": (_Machine.read_bytes_8, _Machine.push_opaque),
    "\x97": (None, _Machine.push_opaque),
    "\x98": (None, _Machine.skip),
}
_OPCODES = {ord(character): _Opcode(*pair) for character, pair in _OPCODES_BY_CHARACTER.items()}
