"""Under which address the other nodes reach this one, and on which ports its Ray listens. Standard library only."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import random
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from da3po.runtime.system import ask_system

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "DA3PO_INTERFACE"
PORT_VARIABLE = "DA3PO_PORT_BASE"
# Addresses of bridges to containers and virtual machines: every node has the same one, and none leads to another node.
BRIDGES = ("docker", "virbr", "veth", "cni", "lxc", "podman", "br-")
SIOCGIFADDR = 0x8915

# What a node's Ray listens on, in the order of its block of ports.
PORTS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "metrics-export-port",
    "ray-client-server-port",
    "dashboard-port",
)
BLOCK_SIZE = 10
# Below 32768 begin no outgoing connections. 16 blocks are a job's own; jobs whose numbers are 125 apart share them.
FIRST_PORT, NUM_BLOCKS, BLOCKS_OF_A_JOB = 10000, 2000, 16
# Between the blocks and the ports of outgoing connections.
MEETING_PORTS = range(30000, 32768)

Ask = Callable[[Sequence[str]], str]


class NetworkError(RuntimeError):
    """This node has no address or no ports for a cluster; the message says what was found."""


def own_address(node: str, environ: Mapping[str, str] = os.environ, ask: Ask = ask_system) -> str:
    """One IPv4 address of this node that other nodes can reach.

    That of the interface in DA3PO_INTERFACE; without it the one that the cluster's name service gives for `node`, if
    this machine has it; else the first that this machine has, bridges to containers left out.
    """
    if name := environ.get(INTERFACE_VARIABLE):
        return _of_interface(name)
    own = [address for address in ask(["hostname", "-I"]).split() if _is_routable(address)]
    bridges = {address for name, address in interfaces().items() if name.startswith(BRIDGES)}
    own = [address for address in own if address not in bridges]
    named = [line.split()[0] for line in ask(["getent", "ahostsv4", node]).splitlines() if line.split()]
    for address in (*(address for address in named if address in own), *own):
        return address
    raise NetworkError(
        f"no IPv4 address of {node} can be reached by other nodes; name its interface in {INTERFACE_VARIABLE} "
        f"(there are {', '.join(interfaces()) or 'none with an IPv4 address'})"
    )


def interfaces() -> dict[str, str]:
    """IPv4 address of each of this machine's interfaces that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def interface_of(address: str) -> str | None:
    """The interface that has `address`."""
    return next((name for name, own in interfaces().items() if own == address), None)


def choose_ports(job: int, node: int, environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Ports of a node's Ray by the name of Ray's option, from a block derived from the job's number.

    node: index of the node in the job; several nodes of a job may be one host. A block of which a port is taken is
    passed over, unless DA3PO_PORT_BASE asks for it.
    """
    if base := environ.get(PORT_VARIABLE):
        return _asked_for(base, node)
    first = (job * BLOCKS_OF_A_JOB + node) % NUM_BLOCKS
    for step in range(NUM_BLOCKS):
        ports = _block(FIRST_PORT + BLOCK_SIZE * ((first + step) % NUM_BLOCKS))
        if all(is_free(port) for port in ports.values()):
            return ports
    raise NetworkError(f"every block of {BLOCK_SIZE} ports from {FIRST_PORT} on has one that is in use")


def free_port() -> int:
    """A port that nobody listens on, for a server that binds it a little later.

    Not one that the system would give to an outgoing connection: that may be taken before the server comes to it.
    """
    for port in random.SystemRandom().sample(MEETING_PORTS, len(MEETING_PORTS)):
        if is_free(port):
            return port
    raise NetworkError(f"every port from {MEETING_PORTS.start} to {MEETING_PORTS.stop - 1} is in use")


def is_free(port: int) -> bool:
    """Whether nobody listens on `port` on any address. Connections that are closing do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def _asked_for(base: str, node: int) -> dict[str, int]:
    if not base.isdigit():
        raise NetworkError(f"{PORT_VARIABLE}={base} is no port")
    ports = _block(int(base) + BLOCK_SIZE * node)
    for option, port in ports.items():
        if not is_free(port):
            raise NetworkError(f"Address already in use: port {port} (Ray's {option}; {PORT_VARIABLE}={base})")
    return ports


def _block(base: int) -> dict[str, int]:
    return {option: base + offset for offset, option in enumerate(PORTS)}


def _of_interface(name: str) -> str:
    address = interfaces().get(name)
    if address is None:
        raise NetworkError(f"{INTERFACE_VARIABLE}={name} has no IPv4 address; there are {', '.join(interfaces())}")
    return address


def _is_routable(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return ip.version == 4 and not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)
