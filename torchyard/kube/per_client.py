"""Objects of which each client has one, such as a cache that all runs of a process share."""

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torchyard.kube.client import Client

T = TypeVar("T")


class PerClient(Generic[T]):
    """One object for each client, made when it is first requested, and dropped with its client.

    Any thread may call the methods. `make` runs under a lock, and its result must not refer to the client.
    """

    def __init__(self, make: Callable[[Client], T]) -> None:
        self._make = make
        self._objects: weakref.WeakKeyDictionary[Client, T] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, client: Client) -> T:
        with self._lock:
            if client not in self._objects:
                self._objects[client] = self._make(client)
            return self._objects[client]

    def list_all(self) -> list[T]:
        """The objects of all clients that exist."""
        with self._lock:
            return list(self._objects.values())
