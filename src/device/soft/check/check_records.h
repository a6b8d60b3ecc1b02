// The program's objects and the work requests that are under way, as the checks know them.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/device/soft/check/caller.h"
#include "src/device/soft/check/ranges.h"
#include "src/device/soft/check/report.h"
#include "src/device/soft/opcode_text.h"
#include "src/device/soft/soft_rnic.h"
#include "src/device/soft/validity.h"

namespace verbena::soft::check {

struct Piece {
  uint64_t address = 0;  // as the request names it
  uint32_t length_bytes = 0;
  uint32_t lkey = 0;
  uint64_t begin = 0;             // where the program has it: regions may have other addresses
  std::optional<uint64_t> sum{};  // at the post, where it is compared
  uint64_t written_before = 0;    // RangeUse::written at the post
  uint64_t end() const { return begin + length_bytes; }
};

struct SendRecord {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signaled = false;
  const void* place = nullptr;
  std::vector<Piece> pieces;  // none with inline data
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
};

struct ReceiveRecord {
  uint64_t wr_id = 0;
  const void* place = nullptr;
  std::vector<Piece> pieces;
};

struct CqRecord {
  ibv_cq* verbs = nullptr;
  uint32_t process = 0;
  bool may_overrun = false;  // as the program asked
  // Held by a poll and what is made of it, so that completions come in their order.
  std::mutex order;
  std::atomic<uint32_t> extended_polls{0};  // under way, which have an order of their own
  // The rest under State::mutex. What may complete here and has not been polled:
  // What was taken by its queue, less what was polled: a poll that comes first makes it less for a
  // moment, never more.
  int64_t sends = 0;
  int64_t receives = 0;
  uint32_t arms = 0;          // without the event of it; 2 stands for all more
  bool polled_since = false;  // it was armed
  bool work_since = false;    // there was work under way when it was armed
  bool lay_before = false;    // a completion lay there then
  uint64_t armed_by = 0;      // this_thread_token()
  bool armed_by_several = false;
  uint64_t polled_by = 0;
  bool polled_by_several = false;
};

struct SrqRecord {
  ibv_srq* verbs = nullptr;
  uint32_t process = 0;
  std::mutex order;
  std::deque<ReceiveRecord> receives;
  uint32_t users = 0;            // queue pairs, or 1 with a completion queue of its own
  std::shared_ptr<CqRecord> cq;  // of XRC
};

struct QpRecord {
  ibv_qp* verbs = nullptr;
  uint32_t number = 0;
  ibv_qp_type type = IBV_QPT_RC;
  bool all_signaled = false;
  uint32_t process = 0;
  std::shared_ptr<CqRecord> send_cq;
  std::shared_ptr<CqRecord> recv_cq;
  std::shared_ptr<SrqRecord> srq;
  // Held by a post and what is noted of it, one for each queue.
  std::mutex send_order;
  std::mutex receive_order;
  // Held to look into the queue pair after one of its completions was polled, which is no call on
  // it: another thread may be destroying it.
  std::mutex use;
  bool gone = false;  // or about to be; under `use`
  // The rest under State::mutex.
  std::deque<SendRecord> sends;
  std::deque<ReceiveRecord> receives;
  bool failed = false;  // an error other than a flush was polled
  uint32_t posts_since_failure = 0;
};

// Whether a request fills its own buffers.
bool fills_own_buffers(ibv_wr_opcode opcode);

enum class Type : uint8_t {
  kContext,
  kDomain,
  kRegion,
  kWindow,
  kChannel,
  kCq,
  kSrq,
  kQp,
  kAddressHandle,
  kDeviceMemory,
  kThreadDomain,
  kXrcDomain,
};
const char* type_name(Type type);

struct Object {
  Type type = Type::kContext;
  const void* place = nullptr;         // where it was made
  bool of_connection_manager = false;  // librdmacm made it for itself
  uint32_t process = 0;
  std::vector<const void*> uses;  // objects that it needs
};

struct Gone {
  Type type = Type::kContext;
  const void* place = nullptr;  // where it was destroyed
};

struct RegionRecord {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t lkey = 0;
  unsigned access = 0;
  // Parts whose pages the program gave back.
  struct Released {
    uint64_t begin;
    uint64_t end;
    std::shared_ptr<const Frames> frames;  // of who did
  };
  std::vector<Released> released;
};

class State {
 public:
  explicit State(CheckOptions options) : reports(std::move(options)) {}

  Reports reports;
  std::mutex mutex;  // of all below
  std::unordered_map<const void*, Object> objects;
  std::unordered_map<const void*, Gone> gone;  // the latest
  std::deque<const void*> gone_order;
  std::unordered_map<const ibv_qp*, std::shared_ptr<QpRecord>> qps;
  std::unordered_map<uint32_t, std::shared_ptr<QpRecord>> qps_by_number;
  std::unordered_map<const ibv_cq*, std::shared_ptr<CqRecord>> cqs;
  std::unordered_map<const ibv_srq*, std::shared_ptr<SrqRecord>> srqs;
  std::unordered_map<uint32_t, RegionRecord> regions;  // by lkey
  Ranges sources;                                      // of sends, WRITEs
  Ranges targets;                                      // of READs, atomics
  Ranges receives;                                     // of queue pairs and shared receive queues
  std::vector<Finding> found;                          // by the StateLock that is held

  template <typename Record, typename Key>
  std::shared_ptr<Record> find(std::unordered_map<const Key*, std::shared_ptr<Record>>& records,
                               const Key* key) {
    const std::lock_guard guard(mutex);
    const auto found = records.find(key);
    return found != records.end() ? found->second : nullptr;
  }
  // Not to be called under `mutex`.
  void report(const Finding& finding) { reports.add(finding); }

  // These hold `mutex`; the first one by a StateLock.
  void report_later(Finding finding) { found.push_back(std::move(finding)); }
  void note_made(const void* self, Type type, const Caller& caller, std::vector<const void*> uses);
  // Of an object whose record was taken out; unless there is another one by now.
  void note_gone(const void* self, Type type, const void* place);
  void forget_work(QpRecord& qp);
  static void forget_pieces(Ranges& ranges, const std::vector<Piece>& pieces);
  // Takes a send's place at its completion queue and its memory back.
  void forget_send(QpRecord& qp, const SendRecord& send);
  Ranges& ranges_of(const SendRecord& send) {
    return fills_own_buffers(send.opcode) ? targets : sources;
  }
};

// Holds State::mutex, and reports what was found meanwhile when it is released: a report asks the
// dynamic loader for names, and writes to what may be a full pipe. Both may take long, and whoever
// holds the loader's lock may be waiting for the mutex.
class StateLock {
 public:
  explicit StateLock(State& all) : all_(all) { all_.mutex.lock(); }
  ~StateLock() {
    std::vector<Finding> found;
    found.swap(all_.found);
    all_.mutex.unlock();
    for (const Finding& finding : found) all_.report(finding);
  }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  State& all_;
};

// Null unless VERBENA_CHECK is set to something that can be used. Used until the process ends.
State* state();
inline uint32_t this_process() { return forks.load(std::memory_order_relaxed); }

std::string describe(const QpRecord& qp);
std::string describe(const std::vector<Piece>& pieces);
const char* state_text(ibv_qp_state state);

// Whether data-path calls on the object are to be refused, which is reported: it is of the process
// that this one was forked from.
bool refused_after_fork(State& all, uint32_t process, const char* verb, const void* place);
// Reports the use of an object that is gone, if it is known to be.
void report_gone(State& all, const void* self, const char* verb, const void* place);

// What the checks call in their turn; filled before anything gets here.
struct NextOperations {
  ibv_context_ops operations{};
  ibv_qp_ex batches{};
  ibv_cq_ex polls{};
};
struct Next {
  VerbsControl control{};
  ExtendedControl extended{};
  DatagramVerbs datagrams{};
  SoftRnic rnic{};
  decltype(verbs_context::create_qp_ex) create_qp_ex = nullptr;
  decltype(verbs_context::create_cq_ex) create_cq_ex = nullptr;
  decltype(verbs_context::create_srq_ex) create_srq_ex = nullptr;
  decltype(verbs_context::open_xrcd) open_xrcd = nullptr;
  decltype(verbs_context::close_xrcd) close_xrcd = nullptr;
  decltype(verbs_context::alloc_parent_domain) alloc_parent_domain = nullptr;
  decltype(verbs_context::alloc_td) alloc_td = nullptr;
  decltype(verbs_context::dealloc_td) dealloc_td = nullptr;
  decltype(verbs_context::alloc_dm) alloc_dm = nullptr;
  decltype(verbs_context::free_dm) free_dm = nullptr;
  decltype(verbs_context::reg_dm_mr) reg_dm_mr = nullptr;
  decltype(verbs_context::alloc_null_mr) alloc_null_mr = nullptr;
};
Next& next();
// The same for all objects of the contexts in a network, and for all of those without one.
NextOperations& next_operations(ibv_context* context);
NextOperations& next_of(ibv_qp* verbs);
NextOperations& next_of(ibv_cq* verbs);
NextOperations& next_of(ibv_srq* verbs);

// --- the functions that stand in front, by file ---
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad);
void replace_batches(ibv_qp_ex& qp);
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr** bad);
int poll_cq(ibv_cq*, int count, ibv_wc*);
int req_notify_cq(ibv_cq*, int solicited_only);
int get_cq_event(ibv_comp_channel*, ibv_cq**, void** cq_context);
void replace_polls(ibv_cq_ex& cq);
void replace_control(SoftRnic& rnic);
void replace_objects(verbs_context& verbs);
void pages_released(void* address, size_t length_bytes);
void take_releases(State& all);                         // holds State::mutex by a StateLock
void note_region_bounds(uint64_t begin, uint64_t end);  // memory that is registered
void watch_exit();

// Counts what a queue took, and reports a completion queue that cannot hold all of it.
void count_at_cq(State& all, CqRecord& cq, int64_t sends, int64_t receives,
                 const std::string& object, const void* place);
// Reports a receive's or send's use of memory that the program has given back since it was
// registered. Holds State::mutex by a StateLock.
void check_released(State& all, const std::vector<Piece>& pieces, const std::string& object,
                    const void* place);

}  // namespace verbena::soft::check
