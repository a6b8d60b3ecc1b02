// What ranks on several hosts exchange, checked byte by byte: point to point, collectively and into
// each other's windows. Compiled by the MPI's own compiler, and started by cases_mpi.py.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Around the limits of what is sent inline, copied and transferred from where it lies.
static const int kSizes[] = {0, 1, 8, 200, 1024, 1025, 4096, 8192, 8193, 70001, 300000};
enum { kSizeCount = sizeof(kSizes) / sizeof(kSizes[0]), kMostBytes = 300000, kRounds = 3 };

static int rank, ranks;

static void fill(unsigned char* data, int source, int target, int number, int size) {
  for (int i = 0; i < size; ++i)
    data[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + source * 31 + target * 57 + number * 101 + 1);
}

static void check(const char* what, const unsigned char* data, int source, int target, int number,
                  int size) {
  static unsigned char expected[kMostBytes];
  fill(expected, source, target, number, size);
  for (int i = 0; i < size; ++i) {
    if (data[i] == expected[i]) continue;
    printf("rank %d: %s %d of %d bytes from rank %d: byte %d is %d, expected %d\n", rank, what,
           number, size, source, i, data[i], expected[i]);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
}

static void fail_unless(int holds, const char* what) {
  if (holds) return;
  printf("rank %d: %s\n", rank, what);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// With all others at once; every second message is one that waits for its receiver.
static void point_to_point(void) {
  unsigned char* out = malloc((size_t)ranks * kMostBytes);
  unsigned char* in = malloc((size_t)ranks * kMostBytes);
  MPI_Request* requests = malloc(2 * (size_t)ranks * sizeof(*requests));
  for (int number = 0; number < kRounds * kSizeCount; ++number) {
    const int size = kSizes[number % kSizeCount];
    int count = 0;
    memset(in, 0, (size_t)ranks * kMostBytes);
    for (int other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      unsigned char* const sent = out + (size_t)other * kMostBytes;
      fill(sent, rank, other, number, size);
      if ((number + rank) % 2 == 0)
        MPI_Isend(sent, size, MPI_BYTE, other, number, MPI_COMM_WORLD, &requests[count++]);
      else
        MPI_Issend(sent, size, MPI_BYTE, other, number, MPI_COMM_WORLD, &requests[count++]);
    }
    for (int i = 1; i < ranks; ++i) {
      MPI_Message message;
      MPI_Status status;
      int bytes = -1;
      MPI_Mprobe(MPI_ANY_SOURCE, number, MPI_COMM_WORLD, &message, &status);
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      fail_unless(bytes == size, "a message has another size than was sent");
      unsigned char* const received = in + (size_t)status.MPI_SOURCE * kMostBytes;
      MPI_Mrecv(received, size, MPI_BYTE, &message, &status);
      check("message", received, status.MPI_SOURCE, rank, number, size);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
  }
  free(requests);
  free(in);
  free(out);
}

// More small messages before the first receive than a ring has slots; in order.
static void burst(void) {
  enum { kMessages = 300 };
  const int right = (rank + 1) % ranks;
  const int left = (rank + ranks - 1) % ranks;
  static int sent[kMessages];
  MPI_Request requests[kMessages];
  for (int i = 0; i < kMessages; ++i) {
    sent[i] = rank * 100000 + i;
    MPI_Isend(&sent[i], 1, MPI_INT, right, 1000, MPI_COMM_WORLD, &requests[i]);
  }
  for (int i = 0; i < kMessages; ++i) {
    int received = -1;
    MPI_Recv(&received, 1, MPI_INT, left, 1000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    fail_unless(received == left * 100000 + i, "a message of a burst is lost or out of order");
  }
  MPI_Waitall(kMessages, requests, MPI_STATUSES_IGNORE);
}

static void collective(void) {
  unsigned char* data = malloc(kMostBytes);
  unsigned char* out = malloc((size_t)ranks * kMostBytes);
  unsigned char* in = malloc((size_t)ranks * kMostBytes);
  for (int number = 0; number < kSizeCount; ++number) {
    const int size = kSizes[number];
    const int root = number % ranks;
    memset(data, 0, kMostBytes);
    if (rank == root) fill(data, root, 0, number, size);
    MPI_Bcast(data, size, MPI_BYTE, root, MPI_COMM_WORLD);
    check("broadcast", data, root, 0, number, size);

    for (int other = 0; other < ranks; ++other)
      fill(out + (size_t)other * (size_t)size, rank, other, number, size);
    memset(in, 0, (size_t)ranks * kMostBytes);
    MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; ++other)
      check("all to all", in + (size_t)other * (size_t)size, other, rank, number, size);

    long sum = 0;
    const long mine = (rank + 1L) * (number + 1);
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    fail_unless(sum == (number + 1L) * ranks * (ranks + 1) / 2, "the sum of an allreduce is wrong");
  }
  free(in);
  free(out);
  free(data);
}

static void one_sided(void) {
  enum { kBytes = 40000 };
  unsigned char* memory = NULL;
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)ranks * kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  unsigned char* out = malloc((size_t)ranks * kBytes);
  unsigned char* in = malloc(kBytes);
  MPI_Win_fence(0, window);
  for (int target = 0; target < ranks; ++target) {
    unsigned char* const put = out + (size_t)target * kBytes;
    fill(put, rank, target, 1, kBytes);
    MPI_Put(put, kBytes, MPI_BYTE, target, (MPI_Aint)rank * kBytes, kBytes, MPI_BYTE, window);
  }
  MPI_Win_fence(0, window);
  for (int source = 0; source < ranks; ++source)
    check("put", memory + (size_t)source * kBytes, source, rank, 1, kBytes);
  const int right = (rank + 1) % ranks;
  MPI_Get(in, kBytes, MPI_BYTE, right, (MPI_Aint)rank * kBytes, kBytes, MPI_BYTE, window);
  MPI_Win_fence(0, window);
  check("get", in, rank, right, 1, kBytes);

  // All add to one number of rank 0.
  memset(memory, 0, sizeof(long));
  MPI_Win_fence(0, window);
  const long one = rank + 1;
  for (int i = 0; i < 10; ++i)
    MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, window);
  MPI_Win_fence(0, window);
  long sum = 0;
  memcpy(&sum, memory, sizeof(sum));
  fail_unless(rank != 0 || sum == 10L * ranks * (ranks + 1) / 2, "the sum of accumulates is wrong");
  MPI_Win_free(&window);
  free(in);
  free(out);
}

int main(int argc, char** argv) {
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Get_processor_name(host, &length);
  point_to_point();
  burst();
  collective();
  one_sided();
  MPI_Barrier(MPI_COMM_WORLD);
  printf("rank %d of %d on %s: everything arrived\n", rank, ranks, host);
  MPI_Finalize();
  return 0;
}
