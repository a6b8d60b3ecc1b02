"""What the tracer records of most calls, for scripts/test-mpi: the numbers are those that it expects of `verbena trace show`
and of a replay. Runs with any number of ranks from 2 on."""

import array

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size


def room(count):
    return bytearray(count)


# In a ring: 100 bytes nonblocking, 20,000 by wildcards, 300 at once, 40 persistent, twice.
sent, received = room(100), room(100)
requests = [world.Irecv(received, left, 1), world.Isend(sent, right, 1)]
MPI.Request.Waitall(requests)
request = world.Isend(room(20000), right, 2)
status = MPI.Status()
world.Recv(room(30000), MPI.ANY_SOURCE, MPI.ANY_TAG, status)
assert status.Get_source() == left and status.Get_count(MPI.BYTE) == 20000
request.Wait()
world.Sendrecv(room(300), right, 3, room(300), left, 3)
pair = [world.Recv_init(room(40), left, 4), world.Send_init(room(40), right, 4)]
for _ in range(2):
    MPI.Prequest.Startall(pair)
    MPI.Request.Waitall(pair)
for one in pair:
    one.Free()

# Out of order: the later message is waited for first; a probe takes one out; tests until it is there.
first, second = world.Irecv(room(8), left, 5), world.Irecv(room(16), left, 6)
world.Send(room(8), right, 5)
world.Send(room(16), right, 6)
second.Wait()
first.Wait()
request = world.Isend(room(64), right, 7)
message = world.Mprobe(left, 7)
message.Recv(room(64))
while not request.Test():
    pass

# Nobody at the border, and oneself.
world.Sendrecv(room(8), MPI.PROC_NULL, 0, room(8), MPI.PROC_NULL, 0)
own = MPI.COMM_SELF.Irecv(room(24), 0, 8)
MPI.COMM_SELF.Send(room(24), 0, 8)
own.Wait()

# Copies that are used for the first time in one order by every second rank, and in the other by the rest.
(one, first), (other, second) = world.Idup(), world.Idup()
MPI.Request.Waitall([first, second])
used = [(one, 11), (other, 22)]
requests = []
for comm, count in used if rank % 2 == 0 else reversed(used):
    requests += [comm.Irecv(room(count), left, 11), comm.Isend(room(count), right, 11)]
MPI.Request.Waitall(requests)
one.Free()
other.Free()

# Halves, in the opposite order, and a copy of all.
half = world.Split(rank % 2, -rank)
copy = world.Dup()
numbers, sums = array.array("d", [rank] * 8), array.array("d", [0] * 8)
half.Allreduce(numbers, sums)
copy.Bcast(room(5000), 0)
copy.Barrier()
world.Reduce(numbers, sums, root=size - 1)
world.Scan(numbers, sums)
world.Gather(room(10), room(10 * size) if rank == 1 else None, root=1)
world.Scatter(room(12 * size) if rank == 0 else None, room(12), root=0)
world.Allgather(room(6), room(6 * size))
world.Alltoall(room(7 * size), room(7 * size))
counts = [3 + i for i in range(size)]
world.Gatherv(room(3 + rank), [room(sum(counts)), counts] if rank == 0 else None, root=0)
world.Allgatherv(room(3 + rank), [room(sum(counts)), counts])
mine = [rank + 1] * size
world.Alltoallv([room(sum(mine)), mine], [room(sum(range(1, size + 1))), list(range(1, size + 1))])
world.Reduce_scatter_block(array.array("d", [0] * (2 * size)), array.array("d", [0] * 2))

# A collective operation that goes on behind messages which the others wait for.
request = world.Iallreduce(numbers, sums)
if rank % 2 == 0:
    world.Send(room(32), right, 9)
if left % 2 == 0:
    world.Recv(room(32), left, 9)
request.Wait()

# Of which nothing is replayed.
window = MPI.Win.Create(room(64), comm=world)
window.Fence()
window.Put(room(8), right)
window.Fence()
# The call with the most arguments: its last one is a place that is written to.
window.Lock_all()
number, before = array.array("d", [1]), array.array("d", [0])
window.Rget_accumulate([number, MPI.DOUBLE], [before, MPI.DOUBLE], right, op=MPI.SUM).Wait()
window.Unlock_all()
window.Free()
# Between a group of one and one of the others: the lists of counts have as many entries as the own group.
group = world.Split(rank == 0, rank)
between = group.Create_intercomm(0, world, 1 if rank == 0 else 0, 10)
counts = [size - 1] if rank == 0 else [1] * (size - 1)
between.Reduce_scatter(array.array("d", [1] * (size - 1)), array.array("d", [0] * counts[0]), counts)
between.Free()
group.Free()
half.Free()
copy.Free()
