"""The bytes that TCP connections of a process have exchanged, as the kernel reports them."""

import os
import socket

import pytest

from tests.support.waiting import wait_until
from torchyard.host.black_box.socket_bytes import count_bytes


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_received_bytes_are_counted(family: socket.AddressFamily) -> None:
    """Bytes that arrive on a connection are counted, whether the program has read them or not."""
    with socket.socket(family) as listening:
        listening.bind(("localhost" if family == socket.AF_INET else "::1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]) as sender, listening.accept()[0] as receiver:
            inode = os.fstat(receiver.fileno()).st_ino
            before = count_bytes([os.getpid()])[inode]
            sender.sendall(bytes(5000))
            assert before == 0
            wait_until(lambda: count_bytes([os.getpid()])[inode] == 5000)


def test_bytes_of_the_store_are_not_counted() -> None:
    """Connections from or to the port of torch's store are left out: its heartbeats are not work."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as sender, listening.accept()[0] as receiver:
            inodes = {os.fstat(end.fileno()).st_ino for end in (sender, receiver)}
            assert inodes <= count_bytes([os.getpid()]).keys()
            assert not inodes & count_bytes([os.getpid()], port).keys()


def test_process_that_is_gone_has_received_nothing() -> None:
    """A process without a folder in /proc has no connections, which is not an error."""
    assert count_bytes([2**22 + 1]) == {}
