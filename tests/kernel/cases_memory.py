"""Remote memory and its applications with everything checked: on one host, and as jobs of one rank per host. And kept
registrations of memory that changes: here pages are pinned, which soft0 does not do."""

from cases import case
from programs import TOOL, gtest, secret_file

# Few operations: this is about what they do, not about numbers.
FEW = ["--operations", "30", "--runs", "1", "--verify"]
SMALL_TABLE = ["--keys", "500", "--new-keys", "500", "--mix", "all", *FEW]
SMALL_LOG = ["--batch", "1,16", "--capacity", "1MiB", "--threads", "2", "--readers", "1", *FEW]
# On both hosts, executors of which each sends and receives.
SMALL_SHUFFLE = ["--nodes", "2", "--method", "basic,sgl", *FEW]
SMALL_JOIN = ["--nodes", "2", "--tuples", "2000", "--method", "basic,sgl", *FEW]


def _measure(machine, *words):
    return [TOOL, *words, "--device", machine.device]


@case(machines=1, limit_s=300)
def remote_memory(host):
    host.run(*_measure(host, "remote", "--operation", "all", "--consolidation", "all", "--version", "all", *FEW),
             lacks=["FAILED"], timeout_s=300)


@case(machines=1, limit_s=300)
def hashtable(host):
    host.run(*_measure(host, "app", "hashtable", *SMALL_TABLE), lacks=["FAILED"], timeout_s=300)


@case(machines=1, limit_s=300)
def log(host):
    host.run(*_measure(host, "app", "log", *SMALL_LOG), lacks=["FAILED"], timeout_s=300)


@case(machines=2, limit_s=300)
def applications_on_two_hosts(first, second):
    for words in (["app", "hashtable", *SMALL_TABLE], ["app", "log", *SMALL_LOG], ["app", "shuffle", *SMALL_SHUFFLE],
                  ["app", "join", *SMALL_JOIN]):
        flags = ["--size", "2", "--coordinator", f"{first.address}:7480"]
        other = second.start(*_measure(second, *words), "--rank", "1", *flags,
                             environment={"VERBENA_JOB_SECRET_FILE": secret_file(second)})
        first.run(*_measure(first, *words), "--rank", "0", *flags, lacks=["FAILED"], timeout_s=300,
                  environment={"VERBENA_JOB_SECRET_FILE": secret_file(first)})
        other.expect()


@case(machines=1, limit_s=300)
def registrations_of_changing_memory(host):
    gtest(host, "memory_test", "MemoryEventsTest.*:*ChangesTest.*/pinned")


@case(machines=1, limit_s=300, alters=True)
def registrations_of_huge_pages(host):
    host.shell("echo 8 >/proc/sys/vm/nr_hugepages")
    gtest(host, "memory_test", "*HugePages*:*AsHuge/pinned")
    host.shell("echo 0 >/proc/sys/vm/nr_hugepages")
