#include "src/trace/pmpi/tracer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace verbena::trace {

namespace {

// So much is kept before it goes to the file.
constexpr size_t kHeldBytes = size_t{1} << 20;
// Between two polls that find nothing, a program that waits does no more.
constexpr uint64_t kPollingNs = 20'000;

thread_local uint32_t depth = 0;
thread_local bool counted = false;

int call_pmpi(const char* name, Handle a, Handle b = 0, Handle c = 0, Handle d = 0, Handle e = 0) {
  using Function = int(Handle, Handle, Handle, Handle, Handle);
  return reinterpret_cast<Function*>(pmpi_or_exit(name))(a, b, c, d, e);
}
template <typename Value>
Handle place(Value* value) {
  return reinterpret_cast<Handle>(value);
}

}  // namespace

// The program's clock, not that of Verbena's runtime, which is not loaded into it.
uint64_t trace_now_ns() {
  const auto now = std::chrono::steady_clock::now();  // NOLINT(conventions)
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count());
}

uint64_t bytes_of(MpiCount count, Handle type) {
  static void* const large = find_pmpi("PMPI_Type_size_x");
  if (count <= 0) return 0;
  MpiCount size = 0;
  if (large != nullptr) {
    reinterpret_cast<int (*)(Handle, MpiCount*)>(large)(type, &size);
  } else {
    int small = 0;
    call_pmpi("PMPI_Type_size", type, place(&small));
    size = small;
  }
  return size > 0 ? static_cast<uint64_t>(count) * static_cast<uint64_t>(size) : 0;
}

uint64_t bytes_received(const void* status) {
  static void* const elements = find_pmpi("PMPI_Get_elements_x");
  MpiCount bytes = 0;
  if (elements != nullptr) {
    reinterpret_cast<int (*)(const void*, Handle, MpiCount*)>(elements)(status, mpi_abi().byte,
                                                                        &bytes);
  } else {
    int small = 0;
    call_pmpi("PMPI_Get_count", place(status), mpi_abi().byte, place(&small));
    bytes = small;
  }
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

Tracer& Tracer::get() {
  // Never destroyed: programs call MPI from destructors of their own.
  static auto* const tracer = new Tracer;
  return *tracer;
}

void Tracer::begin() {
  const char* folder = std::getenv(kTraceFolderVariable);
  if (folder == nullptr || *folder == '\0') return;
  const MpiAbi& abi = mpi_abi();
  Handle parent = 0;
  call_pmpi("PMPI_Comm_get_parent", place(&parent));
  if (abi.normal(parent) != abi.comm_null) {
    std::fprintf(stderr, "verbena: warning: processes of MPI_Comm_spawn are not recorded\n");
    return;
  }
  int rank = 0;
  int size = 1;
  call_pmpi("PMPI_Comm_rank", abi.world, place(&rank));
  call_pmpi("PMPI_Comm_size", abi.world, place(&size));
  char name[32];
  std::snprintf(name, sizeof(name), "/rank-%05d.trace", rank);
  path_ = std::string(folder) + name;
  file_ = std::fopen(path_.c_str(), "wbe");
  if (file_ == nullptr) {
    std::fprintf(stderr, "verbena: error: cannot write %s: %s; nothing is recorded\n",
                 path_.c_str(), std::strerror(errno));
    return;
  }
  // The encoder holds what is to be written; a forked process that exits would write a buffer of
  // stdio's a second time.
  std::setvbuf(file_, nullptr, _IONBF, 0);
  rank_ = static_cast<uint32_t>(rank);
  size_ = static_cast<uint32_t>(size);
#ifndef VERBENA_TRACE_LARGE_COUNTS
  if (rank == 0 && find_pmpi("PMPI_Send_c") != nullptr) {
    std::fprintf(stderr,
                 "verbena: warning: calls with large counts, such as MPI_Send_c, are not "
                 "recorded; leave out --without-large-counts\n");
  }
#endif
  encoder_ = RankEncoder(rank_, size_);
  call_pmpi("PMPI_Comm_group", abi.world, place(&world_group_));
  define(abi.world);
  define(abi.self);
  begun_ns_ = left_ns_ = trace_now_ns();
}

void Tracer::end() {
  if (file_ == nullptr) return;
  flush_completions();
  const uint64_t now = trace_now_ns();
  compute_ns_ += now - left_ns_;
  std::vector<CallCount> calls;
  for (const auto& [name, call] : calls_) calls.push_back(call);
  encoder_.end(computed(), now - begun_ns_, threads_, calls);
  write(true);
  if (std::fclose(file_) != 0) failed_ = true;
  file_ = nullptr;
  if (failed_) {
    std::fprintf(stderr, "verbena: error: %s is not whole: %s; is the disk full?\n", path_.c_str(),
                 std::strerror(errno));
  }
}

void Tracer::write(bool all) {
  if (!all && encoder_.held_bytes() < kHeldBytes) return;
  const std::vector<std::byte> bytes = encoder_.take();
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) failed_ = true;
}

void Tracer::count_call(const char* name, uint64_t begun_ns, uint64_t ended_ns) {
  if (!counted) {
    counted = true;
    ++threads_;
  }
  const uint64_t gap_ns = begun_ns > left_ns_ ? begun_ns - left_ns_ : 0;
  if (!found_nothing_ || gap_ns >= kPollingNs) compute_ns_ += gap_ns;
  found_nothing_ = false;
  CallCount& call = calls_[name];
  if (call.name.empty()) call.name = name;
  ++call.calls;
  call.duration_ns += ended_ns - begun_ns;
}

void Tracer::not_replayed(const char* name) { calls_[name].replayed = false; }

uint64_t Tracer::computed() {
  const uint64_t computed_ns = compute_ns_;
  compute_ns_ = 0;
  return computed_ns;
}

// --- communicators ---

void Tracer::define(Handle handle) {
  const MpiAbi& abi = mpi_abi();
  handle = abi.normal(handle);
  if (handle == abi.comm_null || file_ == nullptr) return;
  TracedComm comm;
  int between = 0;
  call_pmpi("PMPI_Comm_test_inter", handle, place(&between));
  Handle group = 0;
  int size = 0;
  call_pmpi(between != 0 ? "PMPI_Comm_remote_group" : "PMPI_Comm_group", handle, place(&group));
  call_pmpi("PMPI_Group_size", group, place(&size));
  std::vector<int> numbers(static_cast<size_t>(size));
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) numbers[static_cast<size_t>(i)] = i;
  call_pmpi("PMPI_Group_translate_ranks", group, static_cast<Handle>(size), place(numbers.data()),
            world_group_, place(ranks.data()));
  call_pmpi("PMPI_Group_free", place(&group));
  comm.between = between != 0;
  for (const int rank : ranks) {
    // Of another MPI_COMM_WORLD.
    if (rank < 0 || static_cast<uint32_t>(rank) >= size_) comm.between = true;
    comm.members.push_back(static_cast<uint32_t>(rank));
  }
  const auto self = std::find(comm.members.begin(), comm.members.end(), rank_);
  if (self == comm.members.end()) comm.between = true;
  comm.self = static_cast<uint32_t>(self - comm.members.begin());
  if (!comm.between) {
    comm.number = comm_numbers_++;
    encoder_.communicator(comm.members);
  }
  comms_[handle] = std::make_shared<const TracedComm>(std::move(comm));
}

std::shared_ptr<const TracedComm> Tracer::comm(Handle handle) {
  handle = mpi_abi().normal(handle);
  const auto found = comms_.find(handle);
  if (found != comms_.end()) return found->second;
  // Made by a call that is not traced.
  define(handle);
  return comms_.at(handle);
}

// Numbered by the call and not by the first use: of equal members, the first one of a rank is taken
// for the first one of the others.
void Tracer::duplicate(Handle comm_handle, const void* made, Handle request) {
  TracedComm copy = *comm(comm_handle);
  if (!copy.between) {
    copy.number = comm_numbers_++;
    encoder_.communicator(copy.members);
  }
  register_request(
      request,
      {.active = true, .comm = std::make_shared<const TracedComm>(std::move(copy)), .made = made});
}

// --- messages ---

Event Tracer::event_of(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes,
                       int peer, int tag, const TracedComm& comm) const {
  const MpiAbi& abi = mpi_abi();
  Event event{.bytes = bytes,
              .address = reinterpret_cast<uint64_t>(buffer),
              .tag = tag == abi.any_tag ? RankEncoder::kAnyTag : tag,
              .communicator = comm.number,
              .operation = operation,
              .flags = flags};
  event.peer =
      peer == abi.any_source ? RankEncoder::kAnySource : comm.members[static_cast<size_t>(peer)];
  return event;
}

void Tracer::message(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes,
                     int peer, int tag, Handle comm_handle) {
  if (peer == mpi_abi().process_null) return;
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  if (on->between) return not_replayed("(between-groups)");
  Event event = event_of(operation, flags, buffer, bytes, peer, tag, *on);
  event.compute_ns = computed();
  encoder_.event(event, {});
  write(false);
}

void Tracer::exchange(const void* sent, uint64_t bytes, int to, int tag, const void* received,
                      int from, const void* status, Handle comm_handle) {
  const MpiAbi& abi = mpi_abi();
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  if (on->between) return not_replayed("(between-groups)");
  const auto add = [&](const Event& described, uint8_t completion) {
    Event event = described;
    event.compute_ns = computed();
    encoder_.event(event, {});
    completions_.push_back({.request = ++requests_, .flags = completion});
  };
  if (from != abi.process_null) {
    add(event_of(Operation::kStartReceive, 0, received, bytes_received(status),
                 abi.source_of(status), abi.tag_of(status), *on),
        kCompletedReceive | kCompletedAsPosted);
  }
  if (to != abi.process_null) {
    add(event_of(Operation::kStartSend, 0, sent, bytes, to, tag, *on), 0);
  }
  flush_completions();
}

void Tracer::register_request(Handle handle, TracedRequest request) {
  handle = mpi_abi().normal(handle);
  if (handle == mpi_abi().request_null) return;
  // What has come with a message has a handle of its own.
  const auto may_share = [](const TracedRequest& one) {
    const bool received = one.receives && one.number != 0;
    return one.active && !one.persists && !received && one.made == nullptr;
  };
  std::deque<TracedRequest>& same = by_handle_[handle];
  // Only what was done at once shares a handle. Others that had it are over, and the call that
  // completed them has failed: it was not seen.
  std::erase_if(same,
                [&](const TracedRequest& one) { return !may_share(one) || !may_share(request); });
  same.push_back(std::move(request));
}

void Tracer::start(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes, int peer,
                   int tag, Handle comm_handle, Handle request) {
  TracedRequest started{.receives = operation == Operation::kStartReceive, .active = true};
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  if (on->between) not_replayed("(between-groups)");
  if (peer != mpi_abi().process_null && !on->between) {
    started.event = event_of(operation, flags, buffer, bytes, peer, tag, *on);
    started.comm = on;
    Event event = started.event;
    event.compute_ns = computed();
    encoder_.event(event, {});
    started.number = ++requests_;
    write(false);
  }
  register_request(request, started);
}

void Tracer::persistent(Operation operation, uint8_t flags, const void* buffer, uint64_t bytes,
                        int peer, int tag, Handle comm_handle, Handle request) {
  TracedRequest made{.receives = operation == Operation::kStartReceive, .persists = true};
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  if (on->between) not_replayed("(between-groups)");
  if (peer != mpi_abi().process_null && !on->between) {
    made.event = event_of(operation, flags, buffer, bytes, peer, tag, *on);
    made.comm = on;
  }
  register_request(request, made);
}

void Tracer::start_persistent(Handle request) {
  const auto found = by_handle_.find(mpi_abi().normal(request));
  if (found == by_handle_.end() || found->second.empty()) return;
  TracedRequest& started = found->second.front();
  started.active = true;
  if (started.comm == nullptr) return;
  Event event = started.event;
  event.compute_ns = computed();
  encoder_.event(event, {});
  started.number = ++requests_;
  write(false);
}

void Tracer::collective(Operation operation, const void* buffer, uint64_t bytes, uint32_t root,
                        const std::vector<uint64_t>& list, bool varies, Handle comm_handle,
                        Handle request) {
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  const bool waits = request != 0;
  TracedRequest started{.active = true};
  if (on->between) {
    not_replayed("(between-groups)");
  } else {
    Event event{.compute_ns = computed(),
                .bytes = bytes,
                .address = reinterpret_cast<uint64_t>(buffer),
                .peer = root,
                .communicator = on->number,
                .operation = operation,
                .flags = static_cast<uint8_t>((waits ? kNonblocking : 0) | (varies ? kVaries : 0))};
    encoder_.event(event, list);
    if (waits) started.number = ++requests_;
    write(false);
  }
  if (waits) register_request(request, started);
}

// --- completions ---

void Tracer::complete(Handle handle, const void* status) {
  const MpiAbi& abi = mpi_abi();
  const auto found = by_handle_.find(handle);
  if (handle == abi.request_null || found == by_handle_.end()) return;
  // Those that have one handle are all done.
  std::deque<TracedRequest>& requests = found->second;
  TracedRequest& request = requests.front();
  if (!request.active) return;
  if (request.number != 0) {
    Completion done{.request = request.number};
    if (request.receives) describe(request, status, done);
    completions_.push_back(done);
  }
  if (request.made != nullptr) comms_[abi.normal(abi.load(request.made))] = request.comm;
  request.active = false;
  if (request.persists) return;
  requests.pop_front();
  if (requests.empty()) by_handle_.erase(found);
}

// What came for a receive.
void Tracer::describe(const TracedRequest& request, const void* status, Completion& done) const {
  const MpiAbi& abi = mpi_abi();
  done.flags = kCompletedReceive;
  int cancelled = 0;
  call_pmpi("PMPI_Test_cancelled", place(status), place(&cancelled));
  const int source = abi.source_of(status);
  // Where another thread got this handle anew before this call was noted, the status is not of this
  // receive, and has anything as its source.
  const bool other = source < 0 || static_cast<size_t>(source) >= request.comm->members.size();
  if (cancelled != 0 || other) {
    done.flags |= kCompletedCancelled;
    return;
  }
  done.peer = request.comm->members[static_cast<size_t>(source)];
  done.tag = abi.tag_of(status);
  done.bytes = bytes_received(status);
  const Event& posted = request.event;
  if (done.peer == posted.peer && done.tag == posted.tag && done.bytes == posted.bytes) {
    done.flags |= kCompletedAsPosted;
  }
}

void Tracer::flush_completions() {
  if (completions_.empty()) return;
  encoder_.wait(computed(), requests_, completions_);
  completions_.clear();
  write(false);
}

void Tracer::free_request(Handle request) {
  const auto found = by_handle_.find(mpi_abi().normal(request));
  if (found == by_handle_.end()) return;
  found->second.pop_front();
  if (found->second.empty()) by_handle_.erase(found);
}

void Tracer::take_message(Handle message, const void* status, Handle comm_handle) {
  const MpiAbi& abi = mpi_abi();
  if (abi.normal(message) == abi.no_message) return;
  const std::shared_ptr<const TracedComm> on = comm(comm_handle);
  if (on->between) return not_replayed("(between-groups)");
  TracedRequest taken{.receives = true, .active = true};
  taken.comm = on;
  taken.event = event_of(Operation::kStartReceive, 0, nullptr, bytes_received(status),
                         abi.source_of(status), abi.tag_of(status), *on);
  Event event = taken.event;
  event.compute_ns = computed();
  encoder_.event(event, {});
  taken.number = ++requests_;
  messages_[abi.normal(message)] = taken;
  write(false);
}

void Tracer::receive_taken(Handle message, const void* /*buffer*/, Handle request) {
  const auto found = messages_.find(mpi_abi().normal(message));
  if (found == messages_.end()) return;
  const TracedRequest taken = found->second;
  messages_.erase(found);
  if (request != 0) {
    register_request(request, taken);
    return;
  }
  completions_.push_back(
      {.request = taken.number, .flags = kCompletedReceive | kCompletedAsPosted});
  flush_completions();
}

// --- calls ---

TracedCall::TracedCall(const char* name) : name_(name), outer_(depth++ == 0) {
  if (outer_) begun_ns_ = trace_now_ns();
}

bool TracedCall::recorded(int result) {
  Tracer& tracer = Tracer::get();
  if (!outer_) return false;
  const uint64_t ended_ns = trace_now_ns();
  lock_ = std::unique_lock(tracer.mutex());
  if (!tracer.records()) return false;
  tracer.count_call(name_, begun_ns_, ended_ns);
  return result == 0;
}

TracedCall::~TracedCall() {
  --depth;
  if (lock_.owns_lock()) Tracer::get().resume(trace_now_ns());
}

}  // namespace verbena::trace
