// What the tracer knows of this rank, and its file: the exported functions (calls_*.cc) make the
// MPI's own call and tell it what that did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/trace/pmpi/mpi_abi.h"
#include "src/trace/rank_encoder.h"
#include "src/trace/recording.h"

namespace verbena::trace {

// Where the files go.
inline constexpr const char* kTraceFolderVariable = "VERBENA_TRACE_OUT";

// A communicator, as the file has it.
struct TracedComm {
  uint32_t number = 0;
  bool between = false;           // of two groups: not replayed
  std::vector<uint32_t> members;  // ranks of the job
  uint32_t self = 0;              // this rank among them
};

// What a request is of.
struct TracedRequest {
  uint32_t number = 0;  // as in Event; 0: of an operation that has no event
  bool receives = false;
  bool persists = false;
  bool active = false;
  // As posted; of persistent ones, of each start.
  Event event{};
  std::shared_ptr<const TracedComm> comm{};
  const void* made = nullptr;  // of MPI_Comm_idup: where the handle of `comm` is once it is done
};

class Tracer {
 public:
  static Tracer& get();

  // After MPI_Init, and before MPI_Finalize.
  void begin();
  void end();
  bool records() const { return file_ != nullptr; }

  // --- by whoever holds mutex() ---

  std::mutex& mutex() { return mutex_; }
  // Of a call that took this long; what was computed before it belongs to the next event.
  void count_call(const char* name, uint64_t begun_ns, uint64_t ended_ns);
  // Such a call is in no replay, and its name says so in reports.
  void not_replayed(const char* name);
  // A poll that found nothing: a short time until the next call is waiting, not computing.
  void found_nothing() { found_nothing_ = true; }
  void resume(uint64_t now_ns) { left_ns_ = now_ns; }

  std::shared_ptr<const TracedComm> comm(Handle handle);
  void define(Handle handle);
  void forget(Handle handle) { comms_.erase(mpi_abi().normal(handle)); }
  // A copy of a communicator, whose handle will be at `made` once the request is done.
  void duplicate(Handle comm, const void* made, Handle request);

  // --- events ---

  void message(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes, int peer,
               int tag, Handle comm);
  // A send and a receive at once; `status` is the receive's.
  void exchange(const void* sent, uint64_t bytes, int to, int tag, const void* received, int from,
                const void* status, Handle comm);
  void start(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes, int peer,
             int tag, Handle comm, Handle request);
  void persistent(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes, int peer,
                  int tag, Handle comm, Handle request);
  void start_persistent(Handle request);
  void collective(Operation operation, const void* buffer, uint64_t bytes, uint32_t root,
                  const std::vector<uint64_t>& list, bool varies, Handle comm, Handle request);
  // A call has completed what had this handle before; flush_completions() behind the last one.
  void complete(Handle request, const void* status);
  void flush_completions();
  void free_request(Handle request);
  // A message that a probe took out.
  void take_message(Handle message, const void* status, Handle comm);
  void receive_taken(Handle message, const void* buffer, Handle request);

 private:
  void write(bool all);
  uint64_t computed();
  void describe(const TracedRequest& request, const void* status, Completion& done) const;
  Event event_of(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes, int peer,
                 int tag, const TracedComm& comm) const;
  void register_request(Handle handle, TracedRequest request);

  std::mutex mutex_;
  RankEncoder encoder_{0, 1};
  std::FILE* file_ = nullptr;
  std::string path_;
  bool failed_ = false;
  uint64_t begun_ns_ = 0;
  uint64_t left_ns_ = 0;     // when the last call returned
  uint64_t compute_ns_ = 0;  // since the last event
  bool found_nothing_ = false;
  uint32_t threads_ = 0;
  std::map<std::string, CallCount> calls_;
  uint32_t requests_ = 0;
  uint32_t comm_numbers_ = 0;
  Handle world_group_ = 0;
  uint32_t rank_ = 0;
  uint32_t size_ = 1;
  std::unordered_map<Handle, std::shared_ptr<const TracedComm>> comms_;
  // Several may have one handle: MPICH has one for all sends that were done at once, Open MPI one
  // for all of these, for receives from nobody, and for collective operations without messages.
  std::unordered_map<Handle, std::deque<TracedRequest>> by_handle_;
  std::unordered_map<Handle, TracedRequest> messages_;  // of matched probes
  std::vector<Completion> completions_;
};

uint64_t trace_now_ns();

// A call that the program makes, from its begin to its end. Calls that the MPI makes of its own
// functions are none.
class TracedCall {
 public:
  explicit TracedCall(const char* name);
  ~TracedCall();
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;

  // The MPI's own function has returned: true where that is to be recorded; from then on this
  // thread is the only one here.
  bool recorded(int result);
  bool is_outer() const { return outer_; }

 private:
  const char* name_;
  uint64_t begun_ns_ = 0;
  bool outer_ = false;
  std::unique_lock<std::mutex> lock_;
};

// The MPI's own function of this name, of the same type as the exported one.
#define VERBENA_PMPI(NAME) \
  static const auto real = reinterpret_cast<decltype(&(NAME))>(pmpi_or_exit("P" #NAME))

// Calls with large counts are in one of two libraries: programs that find them defined use them,
// and an MPI that has none cannot carry them out.
#ifdef VERBENA_TRACE_LARGE_COUNTS
#define VERBENA_TRACE_LARGE(...) __VA_ARGS__
#else
#define VERBENA_TRACE_LARGE(...)
#endif

#define VERBENA_TRACE_EXPORT extern "C" __attribute__((visibility("default")))

// Bytes of `count` elements of a type.
uint64_t bytes_of(MpiCount count, Handle type);
// Of what came, by its status.
uint64_t bytes_received(const void* status);

}  // namespace verbena::trace
