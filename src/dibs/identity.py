"""Who we are to the store: host, process, and a nonce per start.

A restarted pod has its predecessor's name and sometimes its pid; the nonce keeps it from being
taken for the one that died (MISSION A9).
"""

import os
import secrets
import socket

_nonces: dict[int, str] = {}


def worker_name() -> str:
    """This process's identity, the same until it ends, never used again after that."""
    pid = os.getpid()
    nonce = _nonces.setdefault(pid, secrets.token_hex(4))
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    printable = "".join(character for character in host if character.isprintable())[:150]
    return f"{printable or 'host'}:{pid}:{nonce}"
