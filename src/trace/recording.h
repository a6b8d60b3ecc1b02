// What the ranks of an MPI program did, as `verbena trace` records it and the skeletons of kernels
// are written down: for each rank its calls in their order, with what they moved between whom, and
// the time that the program computed before each. docs/mpi.md says what is recorded of which call.
//
// Receives are recorded as they were matched: a wildcard became the source and the tag that came.
// So the same messages match when the calls are made again, in whatever order messages arrive.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::trace {

// The numbers are those of the file (rank_encoder.h): never change one, add behind the last.
enum class Operation : uint8_t {
  kEnd = 0,
  kCommunicator = 1,  // no call: its members
  // Between two ranks; a receive has the bytes that came.
  kSend = 2,
  kReceive = 3,
  kStartSend = 4,
  kStartReceive = 5,
  kWait = 6,  // until the requests in the list are done
  // Of all members of a communicator. `bytes` is what each contributes:
  kBarrier = 7,
  kBroadcast = 8,       // of the root
  kReduce = 9,          // of each, summed to the root
  kAllreduce = 10,      // of each
  kScan = 11,           // of each
  kGather = 12,         // of each; with a list, at the root: of every member
  kScatter = 13,        // to each; with a list, at the root: to every member
  kAllgather = 14,      // of each; with a list: of every member
  kAlltoall = 15,       // of each to each; with a list: to every member, then from every member
  kReduceScatter = 16,  // of each for each; with a list: for every member
};
inline constexpr uint8_t kOperations = 17;
const char* operation_name(Operation operation);

constexpr bool is_collective(Operation operation) { return operation >= Operation::kBarrier; }
constexpr bool has_root(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}

enum EventFlags : uint8_t {
  kNonblocking = 1u << 0,  // of collectives: has a request, which a kWait names
  kSynchronous = 1u << 1,  // of sends: done once the receive has begun
  kVaries = 1u << 2,       // of collectives: has a list, as above
  // Of a receive that was cancelled or never waited for, and of a send that nothing received: it is
  // not replayed.
  kUnmatched = 1u << 3,
  // Of a blocking send that the program's MPI must have copied, since without its end nobody could
  // have gone on: it is not waited for. Never in a file; link_job() finds them.
  kBuffered = 1u << 4,
  // Of a gather or scatter whose root has a list; also where this rank is not the root. Not in a
  // file either.
  kVariesAtRoot = 1u << 5,
};

struct Event {
  uint64_t compute_ns = 0;  // of the program, since the call before
  uint64_t bytes = 0;
  uint64_t address = 0;  // of the rank's memory: which buffers are used again, and which overlap
  uint32_t peer = 0;     // between two ranks: the other one; else the root, as a member's number
  int32_t tag = 0;
  uint32_t communicator = 0;
  uint32_t request = 0;  // of what has one: its number, from 1 on in the order of such events
  // link_job(): what a message has to have in common with its receive, beside the two ranks.
  uint32_t channel = 0;
  uint32_t first = 0;  // of the list, in RankRecording::numbers
  uint32_t count = 0;
  Operation operation = Operation::kBarrier;
  uint8_t flags = 0;

  bool has(EventFlags flag) const { return (flags & flag) != 0; }
};

// Calls of one MPI function.
struct CallCount {
  std::string name;
  uint64_t calls = 0;
  uint64_t duration_ns = 0;
  bool replayed = true;
};

struct RankRecording {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::vector<Event> events;
  std::vector<uint64_t> numbers;
  // By their numbers, the members' ranks: the first one has all of them, the second one this alone.
  // After link_job(): numbers of RecordedJob::communicators.
  std::vector<std::vector<uint32_t>> communicators;
  uint64_t last_compute_ns = 0;  // behind the last event
  uint64_t elapsed_ns = 0;       // from the end of MPI_Init to MPI_Finalize
  uint32_t threads = 1;          // that called MPI
  std::vector<CallCount> calls;

  std::span<const uint64_t> list(const Event& event) const {
    return {numbers.data() + event.first, event.count};
  }
};

struct RecordedJob {
  std::string name;  // where it comes from, in errors
  std::vector<RankRecording> ranks;
  // Of all ranks, once for all members.
  std::vector<std::vector<uint32_t>> communicators;
  uint32_t channels = 0;
  uint64_t unmatched_sends = 0;
  uint64_t unmatched_receives = 0;
  uint64_t buffered_sends = 0;
  uint64_t digest = 0;  // of all that is replayed: equal for equal recordings

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
};

// --- limits of what is read ---

inline constexpr uint32_t kMostRecordedRanks = 16384;
inline constexpr uint32_t kMostCommunicators = 8192;
// Of all ranks together.
inline constexpr uint64_t kMostEvents = uint64_t{1} << 26;
inline constexpr uint64_t kMostNumbers = uint64_t{1} << 28;
// Of computing between two calls: 13 days.
inline constexpr uint64_t kMostComputeNs = uint64_t{1} << 50;
inline constexpr uint64_t kMostMessageBytes = uint64_t{1} << 40;
inline constexpr uint64_t kMostRecordingBytes = uint64_t{4} << 30;

// Finds what belongs together: communicators of different ranks, sends and receives, calls of a
// collective operation. kProtocolViolation: they contradict each other, such as a receive of other
// bytes than were sent, or would wait for one another for ever. Whatever comes from files or
// generators passes through here before use. Where a rank has several threads, only communicators
// are found: such a recording is for summaries alone.
Status link_job(RecordedJob& job);
// Of that: goes through all calls in an order in which they can end, where a send ends when it is
// received, and a collective operation when all members have come to it.
Status check_progress(RecordedJob& job);

// A barrier, an allreduce and so on as others in the rank's list: for generators.
class RankBuilder {
 public:
  RankBuilder(uint32_t rank, uint32_t size);

  void compute(double ns) { compute_ns_ += ns; }
  void send(uint32_t to, int32_t tag, uint64_t bytes, uint64_t address);
  void receive(uint32_t from, int32_t tag, uint64_t bytes, uint64_t address);
  uint32_t start_send(uint32_t to, int32_t tag, uint64_t bytes, uint64_t address);
  uint32_t start_receive(uint32_t from, int32_t tag, uint64_t bytes, uint64_t address);
  void wait(std::span<const uint32_t> requests);
  void collective(Operation operation, uint64_t bytes, uint64_t address, uint32_t root = 0,
                  uint32_t communicator = 0);
  void collective_v(Operation operation, std::span<const uint64_t> list, uint64_t address,
                    uint32_t root = 0, uint32_t communicator = 0);
  // The members in the order of their numbers; this rank is one of them. Its number.
  uint32_t communicator(std::vector<uint32_t> members);

  RankRecording take();

 private:
  Event& add(Operation operation, uint64_t bytes, uint64_t address);

  RankRecording recording_;
  double compute_ns_ = 0;
  uint32_t requests_ = 0;
};

}  // namespace verbena::trace
