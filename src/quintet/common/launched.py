"""The side of a process that `engine.launch` started: its connection to the process that started it.

`quintet.cli.launch` is the other side. Does not import torch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Mapping

PARENT_SOCKET = "QUINTET_PARENT_SOCKET"
"""Environment variable: descriptor of a socket to the process that started this one."""
STORE_SOCKET = "QUINTET_STORE_SOCKET"
"""Environment variable of rank 0: descriptor of the listening socket at MASTER_PORT, for the rendezvous store.

The port is taken before any process starts, so that two runs cannot choose the same."""

LARGEST_REPORT = 60_000
"""Bytes: a report fits into the buffer of the socket, so that sending it never waits."""


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `engine.launch` started this process."""
    return PARENT_SOCKET in environment


def store_socket(environment: Mapping[str, str] = os.environ) -> int | None:
    """The listening socket of the rendezvous store, if this process has to open it."""
    return int(environment[STORE_SOCKET]) if STORE_SOCKET in environment else None


def end_with_parent() -> None:
    """End this process at once when the process that started it dies, as if both were one."""

    def wait() -> None:
        with _parent() as parent:
            parent.recv(1)  # nothing is ever sent
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="quintet-parent", daemon=True).start()


def report_error(text: str, lost_contact: bool) -> None:
    """Send the sentence of an error to the process that started this one, which prints it once for all processes.

    `lost_contact`: the error is a consequence of the failure of another process."""
    message = json.dumps({"text": text[: LARGEST_REPORT // 12], "lost_contact": lost_contact})
    with _parent() as parent:
        parent.sendall(message.encode())


def _parent() -> socket.socket:
    return socket.socket(fileno=os.dup(int(os.environ[PARENT_SOCKET])))
