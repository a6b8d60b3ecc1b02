// Point-to-point speed of the MPI that runs this, between two ranks: for scripts/bench-mpi, which
// compiles it with each MPI's own header and library.
//
//   mpiexec -n 2 mpi_bench CPU0,CPU1 [lowest]
//
// Rank 0 prints a line for each measurement: its name, a number and its unit. Each is the median of
// many short parts, or the fastest: on a machine that is busy with something else, that still says
// something. Every message carries its number in its first and last bytes, which its receiver
// checks; those of a window share one buffer, which is compared as a whole afterwards. Before,
// between and after them it prints what a cache line takes from one CPU to the other: where that
// changes, the numbers before and after do not belong together.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kParts = 201, kWindow = 64, kMostBytes = 4 << 20, kTag = 7, kAnswerTag = 8 };

static int rank;
static int quantile = kParts / 2;
static char* out;
static char* in;

static void fail(const char* what) {
  fprintf(stderr, "mpi_bench: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

// The number of this process in its job, before MPI_Init: threads that MPI makes inherit the CPU.
static int early_rank(void) {
  const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  for (int i = 0; i < 3; ++i) {
    const char* value = getenv(names[i]);
    if (value != NULL) return atoi(value);
  }
  return 0;
}

static void pin(const char* cpus) {
  const char* mine = cpus;
  if (early_rank() % 2 == 1) {
    mine = strchr(cpus, ',');
    if (mine == NULL) return;
    ++mine;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(atoi(mine), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) perror("mpi_bench: sched_setaffinity");
}

static int ascending(const void* a, const void* b) {
  const double left = *(const double*)a;
  const double right = *(const double*)b;
  return (left > right) - (left < right);
}

static void mark(char* buffer, int bytes, uint64_t number) {
  if (bytes >= 8) {
    memcpy(buffer, &number, 8);
    memcpy(buffer + bytes - 8, &number, 8);
  } else {
    buffer[0] = (char)number;
  }
}

static void check(const char* buffer, int bytes, uint64_t number) {
  if (bytes < 8) {
    if (buffer[0] != (char)number) fail("a message is not the one that was sent");
    return;
  }
  uint64_t head;
  uint64_t tail;
  memcpy(&head, buffer, 8);
  memcpy(&tail, buffer + bytes - 8, 8);
  if (tail != number || (bytes >= 16 && head != number))
    fail("a message is not the one that was sent");
}

static void fill(int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = (char)(i * 7 + i / 251);
  memset(in, 0, (size_t)bytes);
}

// `count` of anything, in seconds.
static double ping_pong(int bytes, int count) {
  static uint64_t number;
  const int other = 1 - rank;
  const double begun_s = MPI_Wtime();
  for (int i = 0; i < count; ++i) {
    ++number;
    mark(out, bytes, number);
    if (rank == 0) {
      MPI_Send(out, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD);
      MPI_Recv(in, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(in, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(out, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD);
    }
    check(in, bytes, number);
  }
  return MPI_Wtime() - begun_s;
}

// Windows of messages from rank 0 to rank 1, each answered.
static double one_way(int bytes, int windows) {
  MPI_Request requests[kWindow];
  char answer = 0;
  const double begun_s = MPI_Wtime();
  for (int i = 0; i < windows; ++i) {
    for (int j = 0; j < kWindow; ++j) {
      if (rank == 0) {
        MPI_Isend(out, bytes, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, &requests[j]);
      } else {
        MPI_Irecv(in, bytes, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[j]);
      }
    }
    MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
    if (rank == 0) {
      MPI_Recv(&answer, 1, MPI_BYTE, 1, kAnswerTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Send(&answer, 1, MPI_BYTE, 0, kAnswerTag, MPI_COMM_WORLD);
    }
  }
  return MPI_Wtime() - begun_s;
}

// Windows of messages both ways at once.
static double both_ways(int bytes, int windows) {
  MPI_Request requests[2 * kWindow];
  const int other = 1 - rank;
  const double begun_s = MPI_Wtime();
  for (int i = 0; i < windows; ++i) {
    for (int j = 0; j < kWindow; ++j)
      MPI_Irecv(in, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, &requests[j]);
    for (int j = 0; j < kWindow; ++j)
      MPI_Isend(out, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, &requests[kWindow + j]);
    MPI_Waitall(2 * kWindow, requests, MPI_STATUSES_IGNORE);
  }
  return MPI_Wtime() - begun_s;
}

// How many of `once_s` take `all_s`, as rank 0 says.
static int agree(double all_s, double once_s) {
  int count = (int)(all_s / once_s) + 1;
  MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return count;
}

// The median time of one, in seconds, of parts that take about `part_s` each.
static double measure(double (*run)(int bytes, int count), int bytes, double part_s) {
  fill(bytes);
  run(bytes, 2);
  int count = agree(part_s, run(bytes, 4) / 4);
  count = agree(part_s, run(bytes, count) / count);
  double parts_s[kParts];
  for (int part = 0; part < kParts; ++part) {
    MPI_Barrier(MPI_COMM_WORLD);
    parts_s[part] = run(bytes, count) / count;
  }
  qsort(parts_s, kParts, sizeof(double), ascending);
  return parts_s[quantile];
}

// A line that both ranks have.
static _Atomic uint64_t* share_line(void) {
  char path[] = "/dev/shm/mpi_bench-XXXXXX";
  int file = rank == 0 ? mkstemp(path) : -1;
  if (rank == 0 && (file < 0 || ftruncate(file, 4096) != 0)) fail("cannot make shared memory");
  MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank == 1) file = open(path, O_RDWR);
  void* line =
      file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink(path);
  if (line == MAP_FAILED) fail("cannot share memory");
  close(file);
  return line;
}

// What it takes from CPU to CPU, in seconds: each stores what the other one waits for.
static double hand_off(_Atomic uint64_t* line, uint64_t* count) {
  enum { kRoundTrips = 20000 };
  MPI_Barrier(MPI_COMM_WORLD);
  const double begun_s = MPI_Wtime();
  for (int i = 0; i < kRoundTrips; ++i, *count += 2) {
    if (rank == 0) atomic_store_explicit(line, *count + 1, memory_order_release);
    while (atomic_load_explicit(line, memory_order_acquire) < *count + 1 + (rank == 0)) {
    }
    if (rank == 1) atomic_store_explicit(line, *count + 2, memory_order_release);
  }
  return (MPI_Wtime() - begun_s) / kRoundTrips / 2;
}

static void print_hand_off(_Atomic uint64_t* line, uint64_t* count) {
  const double once_s = hand_off(line, count);
  if (rank == 0) printf("cache line %.5g ns\n", once_s * 1e9);
}

static void compare_all(int bytes, int receives) {
  if (receives && memcmp(in, out, (size_t)bytes) != 0)
    fail("a window's bytes are not those that were sent");
}

static void size_name(char* text, size_t room, int bytes) {
  if (bytes < 1024) {
    snprintf(text, room, "%d B", bytes);
  } else if (bytes < 1024 * 1024) {
    snprintf(text, room, "%d KiB", bytes / 1024);
  } else {
    snprintf(text, room, "%d MiB", bytes / 1024 / 1024);
  }
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  if (argc == 3) quantile = 0;
  pin(argv[1]);
  MPI_Init(&argc, &argv);
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) fail("this is for two ranks");
  out = malloc(kMostBytes);
  in = malloc(kMostBytes);
  if (out == NULL || in == NULL) fail("no memory");

  _Atomic uint64_t* const line = share_line();
  uint64_t line_count = 0;
  print_hand_off(line, &line_count);
  char name[32];
  const int latencies[] = {1, 8, 64, 512, 1024, 2048, 4096, 8192, 65536, 1 << 20, 4 << 20};
  for (size_t i = 0; i < sizeof(latencies) / sizeof(*latencies); ++i) {
    const int bytes = latencies[i];
    const double once_s = measure(ping_pong, bytes, bytes == 8 ? 0.0005 : 0.0002) / 2;
    size_name(name, sizeof(name), bytes);
    if (rank == 0) printf("%s latency %.5g us\n", name, once_s * 1e6);
  }
  print_hand_off(line, &line_count);
  const int windows[] = {8, 1024, 8192, 65536, 1 << 20, 4 << 20};
  for (size_t i = 0; i < sizeof(windows) / sizeof(*windows); ++i) {
    const int bytes = windows[i];
    const double part_s = bytes < 1 << 20 ? 0.0005 : 0.002;
    size_name(name, sizeof(name), bytes);
    const double there_s = measure(one_way, bytes, part_s) / kWindow;
    compare_all(bytes, rank == 1);
    if (rank == 0 && bytes == 8) printf("%s message rate %.5g M/s\n", name, 1e-6 / there_s);
    if (rank == 0) printf("%s bandwidth %.5g MB/s\n", name, bytes / there_s / 1e6);
    const double both_s = measure(both_ways, bytes, part_s) / kWindow;
    compare_all(bytes, 1);
    if (rank == 0) printf("%s both ways %.5g MB/s\n", name, 2.0 * bytes / both_s / 1e6);
  }
  print_hand_off(line, &line_count);
  free(out);
  free(in);
  MPI_Finalize();
  return 0;
}
