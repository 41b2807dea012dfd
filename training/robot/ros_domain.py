"""A ROS domain of a process's own, so that simulations side by side do not hear each other."""

from __future__ import annotations

import functools
import os
import socket

from ttm.policy.errors import UserError

NUM_DOMAINS = 100
"""Domains 1 to this are tried. The ports of domains above 101 may be in use (ROS documentation)."""
NUM_PARTICIPANTS = 120
"""So many DDS participants of a computer have ports of their own in a domain."""


def claim_ros_domain() -> int:
    """Return the number of a ROS domain in which nobody is, and keep it until this process ends.

    Nobody is in it: no process of this computer has claimed it, and no DDS participant listens there.
    Raises `UserError` if all are in use.
    """
    domain, _ = _claimed()
    return domain


@functools.cache
def _claimed() -> tuple[int, socket.socket]:
    """The domain and the socket that keeps it, which is held as long as the process lives."""
    for offset in range(NUM_DOMAINS):
        domain = 1 + (os.getpid() + offset) % NUM_DOMAINS
        # The TCP port of the same number as the first participant's UDP port is used by nobody.
        claim = _bind(socket.SOCK_STREAM, "127.0.0.1", _port(domain, 0))
        if claim is None:
            continue
        if not any(_listens(domain, participant) for participant in range(NUM_PARTICIPANTS)):
            return domain, claim
        claim.close()
    raise UserError(
        f"ROS domains 1 to {NUM_DOMAINS} are all in use; end other simulations, or choose a domain by "
        "ROS_DOMAIN_ID"
    )


def _port(domain: int, participant: int) -> int:
    """Return the UDP port at which a participant listens (DDSI-RTPS 2.5, section 9.6.2)."""
    return 7410 + 250 * domain + 2 * participant


def _listens(domain: int, participant: int) -> bool:
    listener = _bind(socket.SOCK_DGRAM, "", _port(domain, participant))
    if listener is not None:
        listener.close()
    return listener is None


def _bind(kind: socket.SocketKind, address: str, port: int) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, kind)
    try:
        bound.bind((address, port))
    except OSError:
        bound.close()
        return None
    return bound
