"""Two hosts that a network joins: that they reach each other, and that nobody else gets in."""

import time

from cases import case
from cases_one_host import device_info
from programs import OTHER_SECRET, TOOL, listen, secret_file

PORT = 7471
# The preface of a control connection (src/control/preface.h): magic, version 9, kind 1, no refusal, 32 bytes.
HELLO_OF_VERSION_9 = r"VERBENA\n\011\000\001\000\000\000\000\000abcdefghijklmnopqrstuvwxyz012345"


def _connect(machine, responder, *further):
    """The requester's words of a short benchmark."""
    return [TOOL, "bench", "one-to-one", "--device", machine.device, "--connect", responder.address, "--runs", "1",
            "--requests", "10", "--verify", "--secret-file", secret_file(machine), *further]


@case(machines=2)
def ping_pong_of_rdma_core_on_two_hosts(client, server):
    """Not ours: shows that the network between the devices works."""
    gid = str(max(0, device_info(server)["gid_index"]))
    waiting = server.start("ibv_rc_pingpong", "-d", server.device, "-g", gid, "-n", "100", "-e")
    time.sleep(2)  # until it listens, which it does not say
    client.run("ibv_rc_pingpong", "-d", client.device, "-g", gid, "-n", "100", "-e", server.address,
               holds=["100 iters"])
    waiting.expect(holds=["100 iters"])


@case(machines=2)
def wrong_secret_is_refused(requester, responder):
    server = listen(responder)
    other = secret_file(requester, OTHER_SECRET, "other.secret")
    requester.run(TOOL, "bench", "one-to-one", "--device", requester.device, "--connect", responder.address,
                  "--secret-file", other, code=1, holds=["secret", responder.address])
    # It stays there for those who know the secret.
    requester.run(*_connect(requester, responder), holds=["write/write"])
    server.expect(holds=["secret"])


@case(machines=2)
def wrong_version_is_refused(requester, responder):
    server = listen(responder)
    requester.shell(f"printf '{HELLO_OF_VERSION_9}' | busybox nc -w 5 {responder.address} {PORT}",
                    holds=["wrong protocol version"])
    requester.run(*_connect(requester, responder), holds=["write/write"])
    server.expect(holds=["version 9"])


@case(machines=2)
def listener_of_another_version_is_refused(requester, responder):
    # It stays connected, so that the requester's answer is to what it said.
    responder.start("sh", "-c", f"{{ printf '{HELLO_OF_VERSION_9}'; sleep 5; }} | busybox nc -l -p {PORT}")
    time.sleep(1)
    requester.run(*_connect(requester, responder), code=1, holds=["version 9", responder.address])


@case(machines=2)
def strangers_are_refused(requester, responder):
    server = listen(responder)
    requester.shell(f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 5 {responder.address} {PORT}",
                    holds=["not a Verbena peer"])
    # One that says nothing costs nobody anything.
    silent = requester.start("sh", "-c", f"sleep 60 | busybox nc {responder.address} {PORT}")
    requester.run(*_connect(requester, responder), holds=["write/write"])
    server.expect(holds=[requester.address])
    silent.kill()
