"""`is_alive` asks the operating system."""

from __future__ import annotations

import os
import subprocess
import sys

from quintet.common.processes import is_alive


def test_a_process_is_alive_until_it_has_ended() -> None:
    assert is_alive(os.getpid())
    assert is_alive(1), "that of another person, too"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert not is_alive(ended.pid)
    assert not is_alive(2**70)
