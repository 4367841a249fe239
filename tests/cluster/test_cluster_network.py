"""The one address of a node, and its ports."""

import socket
from pathlib import Path

import pytest

from da3po.cluster import network
from da3po.cluster.network import NetworkError, choose_ports, own_address

REAL_INTERFACES = network.interfaces


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Interfaces of a node with two networks and containers."""
    monkeypatch.setattr(
        network,
        "interfaces",
        lambda: {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "192.168.1.5", "bond0": "10.0.0.5"},
    )


def system(hostname, getent=""):
    """What `hostname -I` and `getent ahostsv4 NODE` print."""
    return lambda command: {"hostname": hostname, "getent": getent}[command[0]]


@pytest.mark.parametrize(
    ("hostname", "getent", "chosen"),
    [
        ("::1 10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5 192.168.1.5", "", "10.0.0.5"),
        ("192.168.1.5 10.0.0.5", "10.0.0.5 STREAM node1\n10.0.0.5 DGRAM\n", "10.0.0.5"),  # the cluster's own name
        ("192.168.1.5", "127.0.1.1 STREAM node1\n", "192.168.1.5"),  # Debian's /etc/hosts
        ("192.168.1.5", "203.0.113.7 STREAM node1\n", "192.168.1.5"),  # an address that this machine has not
        ("172.17.0.1 fd00::2 169.254.3.4 10.0.0.5", "", "10.0.0.5"),  # containers, IPv6, link-local
    ],
)
def test_one_routable_ipv4(hostname, getent, chosen):
    assert own_address("node1", {}, system(hostname, getent)) == chosen


@pytest.mark.parametrize("hostname", ["", "127.0.1.1", "::1 fe80::1", "172.17.0.1"])
def test_none_is_an_error_that_names_the_interfaces(hostname):
    with pytest.raises(NetworkError, match=r"node1.*DA3PO_INTERFACE.*lo, docker0, eth0, bond0"):
        own_address("node1", {}, system(hostname))


def test_the_interface_may_be_named():
    ask = system("10.0.0.5 192.168.1.5")
    assert own_address("node1", {"DA3PO_INTERFACE": "eth0"}, ask) == "192.168.1.5"
    with pytest.raises(NetworkError, match="DA3PO_INTERFACE=ib0 has no IPv4 address; there are lo, docker0"):
        own_address("node1", {"DA3PO_INTERFACE": "ib0"}, ask)


def test_ports_of_jobs_and_nodes_do_not_meet():
    blocks = [set(choose_ports(job, node, {}).values()) for job in range(700, 800) for node in (0, 1)]
    assert len(set.union(*blocks)) == sum(map(len, blocks)) == 200 * 9
    assert all(10000 <= port < 32768 for block in blocks for port in block)


def test_a_block_with_a_taken_port_is_passed_over():
    usual = choose_ports(7, 0, {})
    with socket.create_server(("127.0.0.1", usual["node-manager-port"])):
        other = choose_ports(7, 0, {})
    assert not set(usual.values()) & set(other.values())
    assert choose_ports(7, 0, {}) == usual


def test_a_port_that_was_asked_for_and_is_taken_is_named():
    base = choose_ports(9, 0, {})["port"]
    environ = {"DA3PO_PORT_BASE": str(base)}
    assert choose_ports(9, 1, environ)["node-manager-port"] == base + 11
    with (
        socket.create_server(("", base + 1)),
        pytest.raises(NetworkError, match=rf"Address already in use: port {base + 1} \(Ray's node-manager-port"),
    ):
        choose_ports(9, 0, environ)


def test_interfaces_of_this_machine(monkeypatch):
    monkeypatch.setattr(network, "interfaces", REAL_INTERFACES)
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("203.0.113.1") is None


def test_a_port_for_later_is_none_that_an_outgoing_connection_would_take(monkeypatch):
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(network.MEETING_PORTS) < max(lowest_outgoing, 32768)
    assert network.is_free(network.free_port())
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(network, "MEETING_PORTS", range(taken, taken + 1))
        with pytest.raises(NetworkError, match=f"every port from {taken} to {taken}"):
            network.free_port()
