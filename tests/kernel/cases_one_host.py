"""One host: both sides of each connection are processes of it, and packets go round inside the device."""

import json
import time

from cases import case
from machine import TestFailure
from programs import TOOL, gtest


def device_info(machine):
    """What `verbena devices` says about the device under test."""
    listed = json.loads(machine.run(TOOL, "devices", "--json", quiet=True).output)
    for info in listed:
        if info["name"] == machine.device:
            return info
    raise TestFailure(f"'verbena devices' does not list {machine.device}")


@case(machines=1)
def device_is_usable(host):
    host.run(TOOL, "devices")
    info = device_info(host)
    if "unavailable" in info:
        raise TestFailure(info["unavailable"])
    for limit in ("max_queue_pairs", "max_cqes", "max_sges", "max_shared_receive_queues", "active_mtu_bytes"):
        if info[limit] <= 0:
            raise TestFailure(f"{limit} is {info[limit]}")
    if info["port_state"] != "active":
        raise TestFailure(f"the port is {info['port_state']}")
    if info["link_layer"] == "Ethernet" and info["gid_index"] < 0:
        raise TestFailure("no GID was chosen")


@case(machines=1)
def ping_pong_of_rdma_core(host):
    """Not ours: shows that the device itself works."""
    gid = str(max(0, device_info(host)["gid_index"]))
    server = host.start("ibv_rc_pingpong", "-d", host.device, "-g", gid, "-n", "100", "-e")
    time.sleep(1)
    host.run("ibv_rc_pingpong", "-d", host.device, "-g", gid, "-n", "100", "-e", "localhost", holds=["100 iters"])
    server.expect(holds=["100 iters"])


@case(machines=1)
def queue_pairs(host):
    gtest(host, "device_test", "QueuePairTest.*")


@case(machines=1, limit_s=400)
def request_response(host):
    # Where time is short, two processes stand for two threads too.
    repeated = "-*TwoThreadsOneAtATime:*TwoThreadsManyPending:*TwoThreadsSlotsInAnyOrder"
    gtest(host, "rpc_one_to_one_test", "*" if host.thinning == 1 else repeated, timeout_s=400)


@case(machines=1)
def hostile_requesters(host):
    gtest(host, "rpc_hostile_test")


@case(machines=1)
def gid_can_be_chosen(host):
    info = device_info(host)
    if info["link_layer"] != "Ethernet":
        return  # connections within a subnet need none
    measure = [TOOL, "bench", "one-to-one", "--device", host.device, "--protocol", "write/write", "--runs", "1",
               "--requests", "10", "--verify"]
    host.run(*measure, environment={"VERBENA_GID_INDEX": str(info["gid_index"])})
    host.run(*measure, environment={"VERBENA_GID_INDEX": "255"}, code=2, holds=["VERBENA_GID_INDEX is 255"])
    host.run(*measure, environment={"VERBENA_GID_INDEX": "best"}, code=2, holds=["VERBENA_GID_INDEX is 'best'"])


@case(machines=1, limit_s=300)
def dispatchers(host):
    gtest(host, "rpc_dispatcher_test")


@case(machines=1, limit_s=300)
def services(host):
    gtest(host, "rpc_service_test")


@case(machines=1)
def broken_queue_pairs(host):
    gtest(host, "rpc_broken_test")
