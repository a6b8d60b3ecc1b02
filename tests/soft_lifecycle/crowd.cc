#include "tests/soft_lifecycle/crowd.h"

#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_lifecycle {
namespace {

using soft_test::kAllAccess;
using soft_test::must;
using soft_test::Node;
using soft_test::wait_until;

constexpr uint32_t kCrowdSlots = 8;  // sends, and receives, of a queue pair that are under way
constexpr uint32_t kCommonSlots = 16;
constexpr uint32_t kMessageBytes = 2048;
constexpr uint32_t kGrhBytes = 40;
constexpr uint32_t kSlotSize = kMessageBytes + kGrhBytes;
constexpr uint32_t kCrowdQkey = 0x4711;

// Regions of an arena: two that share a page, and one of its own. Each seat has a part of each,
// which only it writes to, and a counter for all lies behind.
constexpr uint64_t kPartBytes = 768;
constexpr uint64_t kCounterAt = kSeats * kPartBytes;
constexpr uint64_t kRegionBytes = kCounterAt + 64;
constexpr uint64_t kRegionAt[kSeatRegions] = {0, kRegionBytes, 4 * 4096};
constexpr uint64_t kCrowdArenaBytes = 8 * 4096;

// A byte of a part says who wrote it.
constexpr uint8_t kOwnersTag = 0xf0;
uint8_t tag_of(uint32_t seat) { return static_cast<uint8_t>((seat + 1) << 4); }
static_assert(kSeats < 15);
bool has_tag(std::byte byte, uint8_t tag) { return (static_cast<uint8_t>(byte) & 0xf0) == tag; }

enum class Kind : uint8_t { kReliable, kUnreliable, kDatagram };
struct Form {
  Kind kind;
  bool shared_receives;
  bool common_queue;  // completions come to the queue of all threads
};
constexpr Form kForms[kSeatQueuePairs] = {
    {Kind::kReliable, false, false},  {Kind::kReliable, true, true},
    {Kind::kUnreliable, false, true}, {Kind::kUnreliable, true, false},
    {Kind::kDatagram, false, false},  {Kind::kReliable, false, true},
};

ibv_qp_type type_of(Kind kind) {
  switch (kind) {
    case Kind::kUnreliable:
      return IBV_QPT_UC;
    case Kind::kDatagram:
      return IBV_QPT_UD;
    default:
      return IBV_QPT_RC;
  }
}

// wr_id: who posted it, for which queue pair and life of it, and which it is.
constexpr uint64_t kIsSend = uint64_t{1} << 63;
constexpr uint64_t kIsCommon = uint64_t{1} << 62;  // a receive of the shared queue
uint64_t make_id(uint32_t seat, uint32_t index, uint32_t life, uint32_t slot, bool sends) {
  return (sends ? kIsSend : 0) | uint64_t{seat} << 48 | uint64_t{index} << 40 |
         uint64_t{life} << 8 | slot;
}
uint32_t seat_of(uint64_t id) { return static_cast<uint32_t>(id >> 48 & 0xff); }
uint32_t index_in(uint64_t id) { return static_cast<uint32_t>(id >> 40 & 0xff); }
uint32_t life_in(uint64_t id) { return static_cast<uint32_t>(id >> 8); }
uint32_t slot_in(uint64_t id) { return static_cast<uint32_t>(id & 0xff); }

// A message of equal bytes.
bool is_uniform(const std::byte* bytes, size_t size_bytes) {
  return std::all_of(bytes, bytes + size_bytes, [&](std::byte byte) { return byte == bytes[0]; });
}

// What the threads of a process share.
struct Company {
  Company(Board& the_board, uint32_t the_process) : board(the_board), process(the_process) {
    ibv_port_attr port{};
    if (node.control().query_port(node.device.get(), 1, &port) != 0) fail("query_port");
    lid = port.lid;
  }

  // The first one is what everybody ends with.
  void fail(const std::string& text) {
    const std::lock_guard guard(mutex);
    if (failure.empty()) failure = text;
    board.failed.store(1);
  }

  Board& board;
  const uint32_t process;
  Node node;
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 1024}));
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kCommonSlots}));
  uint16_t lid = 0;
  soft_test::Buffer common{node, size_t{kCommonSlots} * kSlotSize};
  std::atomic<bool> is_posted[kCommonSlots] = {};
  std::mutex inbox_mutex;  // of completions that another thread has polled
  std::array<std::vector<ibv_wc>, kCrowdThreads> inboxes;
  std::mutex mutex;
  std::string failure;
};

struct CrowdQueuePair {
  ibv_qp* qp = nullptr;
  uint32_t life = 0;
  bool connected = false;  // or failed: it takes sends
  bool was_ready = false;  // to send; before, it takes no READs
  bool may_fail = false;   // something has failed
  // In their order: the slots, of receives only without a shared queue.
  std::deque<uint32_t> sends;
  std::deque<uint32_t> receives;
  std::vector<uint32_t> free_sends;
  std::vector<uint32_t> free_receives;
  bool sends_failed = false;
  bool receives_failed = false;
};

class Worker {
 public:
  Worker(Company& company, uint32_t thread, uint64_t seed)
      : company_(company),
        control_(company.node.control()),
        thread_(thread),
        seat_(company.process * kCrowdThreads + thread),
        random_(seed ^ (seat_ + 1) * 0x9e3779b97f4a7c15u) {
    void* const arena =
        mmap(nullptr, kCrowdArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    arena_ = static_cast<std::byte*>(arena);
    mine().arena.store(reinterpret_cast<uint64_t>(arena));
    for (uint32_t i = 0; i < kSeatRegions; ++i) fill_region(i);
    cq_ = control_.create_cq(device(), 1024, nullptr, nullptr, 0);
    ibv_ah_attr address{};
    address.port_num = 1;
    address.dlid = company.lid;
    handle_ = control_.create_ah(domain(), &address);
    if (cq_ == nullptr || handle_ == nullptr) fail("cannot make its first objects");
  }
  ~Worker() { munmap(arena_, kCrowdArenaBytes); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(uint32_t steps) {
    for (uint32_t step = 0; step < steps && good(); ++step) {
      act();
      company_.board.steps.fetch_add(1);
    }
    if (good()) end();
  }

 private:
  bool good() const { return company_.board.failed.load() == 0; }
  void fail(const std::string& text) {
    company_.fail("seat " + std::to_string(seat_) + ": " + text + "; errno " +
                  std::to_string(errno) + ", " + control_.last_error());
  }
  void check(bool holds, const char* what, uint32_t index) {
    if (!holds) fail(std::string(what) + ", queue pair " + std::to_string(index));
  }
  // While a process without a CPU is in the middle of an access.
  template <typename Call>
  void until_not_busy(Call&& call, const char* what) {
    int error = 0;
    if (!wait_until([&] { return (error = call()) != EBUSY; })) error = EBUSY;
    if (error != 0) fail(std::string(what) + " returns " + std::to_string(error));
  }

  ibv_context* device() const { return company_.node.device.get(); }
  ibv_pd* domain() const { return company_.node.domain.get(); }
  Seat& mine() { return company_.board.seats[seat_]; }
  std::byte* send_buffer(uint32_t index, uint32_t slot) {
    return messages_.data() + (index * 2 * kCrowdSlots + slot) * size_t{kSlotSize};
  }
  std::byte* receive_buffer(uint32_t index, uint32_t slot) {
    return messages_.data() + (index * 2 * kCrowdSlots + kCrowdSlots + slot) * size_t{kSlotSize};
  }
  std::byte* common_buffer(uint32_t slot) {
    return company_.common.data() + slot * size_t{kSlotSize};
  }
  std::byte random_byte(uint8_t tag) {
    return static_cast<std::byte>(tag | static_cast<uint8_t>(random_.below(16)));
  }

  // ---- what may happen ----

  void act() {
    const auto index = static_cast<uint32_t>(random_.below(kSeatQueuePairs));
    CrowdQueuePair& one = held_[index];
    const uint64_t what = random_.below(100);
    if (one.qp == nullptr) return make(index);
    if (what < 4) return destroy(index);
    if (what < 7) return reset(index);
    if (what < 9) return to_error(index);
    if (what < 20) return connect(index);
    if (what < 36) return receive(index);
    if (what < 66) return send(index);
    if (what < 80) return poll_all();
    if (what < 92) return change_region();
    change_window();
  }

  // ---- queue pairs ----

  static std::vector<uint32_t> all_slots() {
    std::vector<uint32_t> all(kCrowdSlots);
    for (uint32_t i = 0; i < kCrowdSlots; ++i) all[i] = i;
    return all;
  }
  ibv_cq* queue_of(uint32_t index) const {
    return kForms[index].common_queue ? company_.cq.get() : cq_;
  }
  void begin_life(CrowdQueuePair& one) {
    one.life = ++lives_;
    one.connected = one.was_ready = one.may_fail = one.sends_failed = one.receives_failed = false;
    one.sends.clear();
    one.receives.clear();
    one.free_sends = all_slots();
    one.free_receives = all_slots();
  }

  void make(uint32_t index) {
    const Form& form = kForms[index];
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = queue_of(index);
    init.srq = form.shared_receives ? company_.srq.get() : nullptr;
    init.cap = {.max_send_wr = 2 * kCrowdSlots,
                .max_recv_wr = kCrowdSlots,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 128};
    init.qp_type = type_of(form.kind);
    CrowdQueuePair& one = held_[index];
    one.qp = control_.create_qp(domain(), &init);
    if (one.qp == nullptr) return fail("create_qp");
    begin_life(one);
    to_init(index);
    mine().numbers[index].store(one.qp->qp_num);
  }

  void modify(uint32_t index, ibv_qp_attr attributes, int mask, const char* what) {
    until_not_busy(
        [&] { return control_.modify_qp(held_[index].qp, &attributes, mask | IBV_QP_STATE); },
        what);
  }
  void to_init(uint32_t index) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kCrowdQkey;
    const Kind kind = kForms[index].kind;
    attributes.qp_access_flags =
        kind == Kind::kReliable ? kAllAccess : unsigned{IBV_ACCESS_REMOTE_WRITE};
    modify(index, attributes,
           IBV_QP_PKEY_INDEX | IBV_QP_PORT |
               (kind == Kind::kDatagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
           "to INIT");
  }

  // Mostly two and two; else whoever.
  void connect(uint32_t index) {
    CrowdQueuePair& one = held_[index];
    if (one.connected) return reset(index);
    const uint32_t partner = kSeats - 1 - seat_;
    const auto other =
        random_.below(5) == 0 ? static_cast<uint32_t>(random_.below(kSeats)) : partner;
    const uint32_t number = company_.board.seats[other].numbers[index].load();
    const Kind kind = kForms[index].kind;
    if (number == 0 && kind != Kind::kDatagram) return;
    const bool is_reliable = kind == Kind::kReliable;
    const bool is_datagram = kind == Kind::kDatagram;
    ibv_qp_attr attributes{};
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = number;
    attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 16;
    attributes.min_rnr_timer = 1;
    attributes.rnr_retry = attributes.retry_cnt = 1;
    attributes.timeout = 1;
    attributes.ah_attr.dlid = company_.lid;
    attributes.ah_attr.port_num = 1;
    attributes.qp_state = IBV_QPS_RTR;
    modify(index, attributes,
           (is_datagram ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
               (is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
           "to RTR");
    // By now a peer may have failed it.
    attributes.qp_state = IBV_QPS_RTS;
    const int mask = IBV_QP_STATE | IBV_QP_SQ_PSN |
                     (is_reliable ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RNR_RETRY | IBV_QP_RETRY_CNT |
                                        IBV_QP_TIMEOUT
                                  : 0);
    const int error = control_.modify_qp(one.qp, &attributes, mask);
    if (error != 0 && state_of(index) != IBV_QPS_ERR) return fail("to RTS");
    one.may_fail = error != 0;
    one.was_ready = error == 0;
    one.connected = true;
  }

  ibv_qp_state state_of(uint32_t index) {
    return soft_test::state_of(company_.node, held_[index].qp);
  }

  void reset(uint32_t index) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    modify(index, attributes, 0, "to RESET");
    begin_life(held_[index]);
    to_init(index);
  }

  void to_error(uint32_t index) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    modify(index, attributes, 0, "to ERR");
    held_[index].may_fail = true;
    held_[index].connected = true;  // to be reset before it is connected
  }

  void destroy(uint32_t index) {
    CrowdQueuePair& one = held_[index];
    mine().numbers[index].store(0);
    until_not_busy([&] { return control_.destroy_qp(one.qp); }, "destroy_qp");
    one.qp = nullptr;
    begin_life(one);
  }

  // ---- work ----

  void receive(uint32_t index) {
    CrowdQueuePair& one = held_[index];
    if (kForms[index].shared_receives) return receive_for_all();
    if (one.free_receives.empty()) return;
    const uint32_t slot = one.free_receives.back();
    one.free_receives.pop_back();
    one.receives.push_back(slot);
    std::byte* const at = receive_buffer(index, slot);
    const int error =
        soft_test::post_receive(one.qp, make_id(seat_, index, one.life, slot, false),
                                {{reinterpret_cast<uint64_t>(at), kSlotSize, messages_.key()}});
    if (error != 0) fail("ibv_post_recv returns " + std::to_string(error));
  }
  void receive_for_all() {
    const auto slot = static_cast<uint32_t>(random_.below(kCommonSlots));
    if (company_.is_posted[slot].exchange(true)) return;
    std::byte* const at = common_buffer(slot);
    const int error = soft_test::post_receive(
        company_.srq.get(), kIsCommon | slot,
        {{reinterpret_cast<uint64_t>(at), kSlotSize, company_.common.key()}});
    if (error != 0) fail("ibv_post_srq_recv returns " + std::to_string(error));
  }

  void send(uint32_t index) {
    CrowdQueuePair& one = held_[index];
    if (!one.connected || one.free_sends.empty()) return;
    const uint32_t slot = one.free_sends.back();
    std::byte* const at = send_buffer(index, slot);
    const auto size_bytes = static_cast<uint32_t>(1 + random_.below(kMessageBytes));
    soft_test::SendRequest request{
        .id = make_id(seat_, index, one.life, slot, true),
        .sges = {{reinterpret_cast<uint64_t>(at), size_bytes, messages_.key()}}};
    ibv_send_wr wr{};
    std::fill_n(at, kMessageBytes, random_byte(tag_of(seat_)));
    const Kind kind = kForms[index].kind;
    if (kind != Kind::kDatagram && one.was_ready && random_.below(2) == 0 &&
        !aim(kind, at, request))
      return;
    if (request.sges[0].length <= 128 && request.opcode != IBV_WR_RDMA_READ &&
        request.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD && random_.below(2) == 0) {
      request.flags |= IBV_SEND_INLINE;
    }
    wr = soft_test::to_wr(request);
    if (kind == Kind::kDatagram) {
      const auto to = static_cast<uint32_t>(random_.below(kSeats));
      wr.wr.ud = {.ah = handle_,
                  .remote_qpn = company_.board.seats[to].numbers[index].load(),
                  .remote_qkey = kCrowdQkey};
      if (wr.wr.ud.remote_qpn == 0) return;
    }
    one.free_sends.pop_back();
    one.sends.push_back(slot);
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(one.qp, &wr, &bad);
    if (error != 0) fail("ibv_post_send returns " + std::to_string(error));
  }

  // At somebody's region. False: there is none.
  bool aim(Kind kind, std::byte* at, soft_test::SendRequest& request) {
    Seat& target = company_.board.seats[random_.below(kSeats)];
    const uint64_t region = random_.below(kSeatRegions);
    const bool by_window = random_.below(8) == 0;
    request.rkey = by_window ? target.window_key.load() : target.keys[region].load();
    if (request.rkey == 0) return false;
    const uint64_t begin = target.arena.load() + kRegionAt[region];
    const uint64_t what = kind == Kind::kReliable ? random_.below(8) : 0;
    if (what == 7) {
      request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      request.sges[0].length = 8;
      request.remote_address = begin + kCounterAt;
      request.compare_add = 1;
      return true;
    }
    const uint64_t offset = random_.below(kPartBytes);
    const auto size_bytes = static_cast<uint32_t>(1 + random_.below(kPartBytes - offset));
    request.sges[0].length = size_bytes;
    request.remote_address = begin + seat_ * kPartBytes + offset;
    request.opcode = what >= 4 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    if (request.opcode != IBV_WR_RDMA_READ) return true;
    std::fill_n(at, size_bytes, std::byte{});
    if (what == 6) aim_into_neighbour(request);
    return true;
  }

  // Fills this seat's part of a region of another thread, which may deregister it meanwhile.
  void aim_into_neighbour(soft_test::SendRequest& request) {
    const uint32_t thread = static_cast<uint32_t>(random_.below(kCrowdThreads));
    const Seat& neighbour = company_.board.seats[company_.process * kCrowdThreads + thread];
    const uint64_t region = random_.below(kSeatRegions);
    const uint32_t key = neighbour.keys[region].load();
    if (key == 0) return;
    request.sges[0].addr = neighbour.arena.load() + kRegionAt[region] + seat_ * kPartBytes;
    request.sges[0].lkey = key;
  }

  // ---- completions ----

  void poll_all() {
    std::array<ibv_wc, 4> some;
    const int got = ibv_poll_cq(cq_, static_cast<int>(some.size()), some.data());
    if (got < 0) return fail("ibv_poll_cq returns " + std::to_string(got));
    for (int i = 0; i < got && good(); ++i) take(some[static_cast<size_t>(i)], true);
    poll_common();
    std::vector<ibv_wc> found;
    {
      const std::lock_guard guard(company_.inbox_mutex);
      found.swap(company_.inboxes[thread_]);
    }
    for (const ibv_wc& wc : found) {
      if (good()) take(wc, false);
    }
  }
  // Whoever polls gives each what is its.
  void poll_common() {
    std::array<ibv_wc, 4> some;
    const int got = ibv_poll_cq(company_.cq.get(), static_cast<int>(some.size()), some.data());
    if (got < 0) return fail("ibv_poll_cq of all returns " + std::to_string(got));
    const std::lock_guard guard(company_.inbox_mutex);
    for (int i = 0; i < got; ++i) {
      const ibv_wc& wc = some[static_cast<size_t>(i)];
      // A receive of the shared queue belongs to nobody.
      const uint32_t seat = (wc.wr_id & kIsCommon) != 0 ? seat_ : seat_of(wc.wr_id);
      if (seat / kCrowdThreads != company_.process || seat % kCrowdThreads >= kCrowdThreads) {
        return fail("a completion that nobody posted");
      }
      company_.inboxes[seat % kCrowdThreads].push_back(wc);
    }
  }

  // `in_order`: as its queue pair made them.
  void take(const ibv_wc& wc, bool in_order) {
    if ((wc.wr_id & kIsCommon) != 0) return take_common(wc);
    const uint32_t index = index_in(wc.wr_id);
    if (seat_of(wc.wr_id) != seat_ || index >= kSeatQueuePairs) return fail("a foreign completion");
    CrowdQueuePair& one = held_[index];
    if (life_in(wc.wr_id) != one.life) {
      // Another thread may have had it in its hands when the queue pair was reset.
      check(!in_order, "a completion of a former life", index);
      return;
    }
    const bool sends = (wc.wr_id & kIsSend) != 0;
    std::deque<uint32_t>& list = sends ? one.sends : one.receives;
    const auto found = std::find(list.begin(), list.end(), slot_in(wc.wr_id));
    if (found == list.end()) return check(false, "a second completion", index);
    if (in_order) check(found == list.begin(), "a completion out of turn", index);
    list.erase(found);
    (sends ? one.free_sends : one.free_receives).push_back(slot_in(wc.wr_id));
    bool& failed = sends ? one.sends_failed : one.receives_failed;
    if (wc.status != IBV_WC_SUCCESS) {
      one.may_fail = failed = true;
      return check_status(wc, sends, index);
    }
    if (in_order) check(!failed, "a success after a failure", index);
    if (sends) return check_sent(wc, index);
    check_message(receive_buffer(index, slot_in(wc.wr_id)), wc);
  }

  void check_status(const ibv_wc& wc, bool sends, uint32_t index) {
    const Kind kind = kForms[index].kind;
    bool may_be = wc.status == IBV_WC_WR_FLUSH_ERR;
    if (sends && kind == Kind::kReliable) {
      may_be |= wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_RNR_RETRY_EXC_ERR ||
                wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_LOC_PROT_ERR;
    }
    if (!may_be) {
      fail("queue pair " + std::to_string(index) + ", a " + (sends ? "send" : "receive") +
           " ends with " + ibv_wc_status_str(wc.status));
    }
  }

  void check_sent(const ibv_wc& wc, uint32_t index) {
    if (wc.opcode != IBV_WC_RDMA_READ) return;
    // Of its own part: what it has written, or the owner.
    const std::byte* const at = send_buffer(index, slot_in(wc.wr_id));
    if (at[0] == std::byte{}) return;  // it went into a neighbour's
    for (uint32_t i = 0; i < wc.byte_len; ++i) {
      if (!has_tag(at[i], tag_of(seat_)) && !has_tag(at[i], kOwnersTag)) {
        return fail("a READ finds what nobody wrote");
      }
    }
  }

  void check_message(const std::byte* at, const ibv_wc& wc) {
    const bool datagram =
        kForms[index_in(wc.wr_id)].kind == Kind::kDatagram && (wc.wr_id & kIsCommon) == 0;
    const uint32_t header_bytes = datagram ? kGrhBytes : 0;
    if (wc.opcode != IBV_WC_RECV || wc.byte_len <= header_bytes || wc.byte_len > kSlotSize) {
      return fail("a receive of " + std::to_string(wc.byte_len) + " bytes");
    }
    if (!is_uniform(at + header_bytes, wc.byte_len - header_bytes) ||
        static_cast<uint8_t>(at[header_bytes]) >> 4 == 0 ||
        static_cast<uint8_t>(at[header_bytes]) >> 4 > kSeats) {
      fail("a message that nobody sent");
    }
  }

  void take_common(const ibv_wc& wc) {
    const auto slot = static_cast<uint32_t>(wc.wr_id & ~kIsCommon);
    if (slot >= kCommonSlots) return fail("a receive that nobody posted");
    if (wc.status == IBV_WC_SUCCESS)
      check_message(common_buffer(slot), wc);
    else if (wc.status != IBV_WC_WR_FLUSH_ERR)
      fail("a shared receive ends with an error");
    if (!company_.is_posted[slot].exchange(false)) fail("a shared receive completes twice");
  }

  // ---- memory ----

  std::byte* region_at(uint32_t index) { return arena_ + kRegionAt[index]; }
  // Nobody has access to it.
  void fill_region(uint32_t index) {
    fills_[index] = random_byte(kOwnersTag);
    std::fill_n(region_at(index), kRegionBytes, fills_[index]);
  }
  void change_region() {
    const auto index = static_cast<uint32_t>(random_.below(kSeatRegions));
    std::byte* const at = region_at(index);
    if (regions_[index] == nullptr) {
      const bool untouched =
          std::all_of(at, at + kRegionBytes, [&](std::byte byte) { return byte == fills_[index]; });
      if (!untouched) return fail("memory of no region has changed");
      regions_[index] = control_.reg_mr(domain(), at, kRegionBytes, reinterpret_cast<uint64_t>(at),
                                        kAllAccess | IBV_ACCESS_MW_BIND);
      if (regions_[index] == nullptr) return fail("reg_mr");
      mine().keys[index].store(regions_[index]->rkey);
      return;
    }
    check_region(index);
    end_window(index);
    mine().keys[index].store(0);
    until_not_busy([&] { return control_.dereg_mr(regions_[index]); }, "dereg_mr");
    regions_[index] = nullptr;
    fill_region(index);
  }
  // Each part has what its seat has written, or the owner.
  void check_region(uint32_t index) {
    const std::byte* const at = region_at(index);
    for (uint32_t seat = 0; seat < kSeats; ++seat) {
      for (uint64_t i = 0; i < kPartBytes; ++i) {
        const std::byte byte = at[seat * kPartBytes + i];
        if (!has_tag(byte, tag_of(seat)) && !has_tag(byte, kOwnersTag)) {
          return fail("seat " + std::to_string(seat) + "'s part of region " +
                      std::to_string(index) + " has " + std::to_string(static_cast<int>(byte)) +
                      " at " + std::to_string(i));
        }
      }
    }
  }

  // A window of type 1 at one region.
  void change_window() {
    if (window_ != nullptr) return end_window(window_region_);
    const auto index = static_cast<uint32_t>(random_.below(kSeatRegions));
    CrowdQueuePair& one = held_[0];
    if (regions_[index] == nullptr || one.qp == nullptr || !one.connected) return;
    if (state_of(0) != IBV_QPS_RTS || one.free_sends.empty()) return;
    window_ = ibv_alloc_mw(domain(), IBV_MW_TYPE_1);
    if (window_ == nullptr) return fail("ibv_alloc_mw");
    window_region_ = index;
    const uint32_t slot = one.free_sends.back();
    ibv_mw_bind bind{};
    bind.wr_id = make_id(seat_, 0, one.life, slot, true);
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {.mr = regions_[index],
                      .addr = reinterpret_cast<uint64_t>(region_at(index)),
                      .length = kRegionBytes,
                      .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    int error = 0;
    if (!wait_until([&] { return (error = ibv_bind_mw(one.qp, window_, &bind)) != EBUSY; }) ||
        error != 0) {
      return fail("ibv_bind_mw returns " + std::to_string(error));
    }
    one.free_sends.pop_back();
    one.sends.push_back(slot);
    mine().window_key.store(window_->rkey);
  }
  // The window that is bound to this region, if there is one.
  void end_window(uint32_t region) {
    if (window_ == nullptr || window_region_ != region) return;
    mine().window_key.store(0);
    until_not_busy([&] { return ibv_dealloc_mw(window_); }, "ibv_dealloc_mw");
    window_ = nullptr;
  }

  // ---- the end ----

  // All that was posted completes, and all goes.
  void end() {
    for (uint32_t index = 0; index < kSeatQueuePairs && good(); ++index) {
      CrowdQueuePair& one = held_[index];
      if (one.qp == nullptr) continue;
      to_error(index);
      const auto is_over = [&] {
        poll_all();
        return !good() || (one.sends.empty() && one.receives.empty());
      };
      if (!wait_until(is_over)) fail("requests have not completed");
      if (good()) destroy(index);
    }
    for (uint32_t index = 0; index < kSeatRegions && good(); ++index) {
      if (regions_[index] != nullptr) change_region();
    }
    if (!good()) return;
    if (control_.destroy_ah(handle_) != 0) fail("destroy_ah");
    if (control_.destroy_cq(cq_) != 0) fail("destroy_cq");
  }

  Company& company_;
  const VerbsControl& control_;
  const uint32_t thread_;
  const uint32_t seat_;
  Random random_;
  soft_test::Buffer messages_{company_.node, size_t{kSeatQueuePairs} * 2 * kCrowdSlots* kSlotSize};
  std::byte* arena_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_ah* handle_ = nullptr;
  CrowdQueuePair held_[kSeatQueuePairs];
  ibv_mr* regions_[kSeatRegions] = {};
  std::byte fills_[kSeatRegions] = {};
  ibv_mw* window_ = nullptr;
  uint32_t window_region_ = 0;
  uint32_t lives_ = 0;
};

// Each receive that is still in the shared queue meets a message, and no other does.
void drain_shared_receives(Company& company) {
  soft_test::End receiver(company.node, {.shared_receive_queue = &company.srq});
  soft_test::End sender(company.node);
  soft_test::connect(sender, receiver, soft_test::kImpatient);
  std::byte message[8] = {};
  uint32_t posted = 0;
  for (const std::atomic<bool>& one : company.is_posted) posted += one.load() ? 1 : 0;
  for (uint32_t i = 0; i <= posted; ++i) {
    const bool is_one_more = i == posted;
    const int error =
        soft_test::post(sender.qp(), {.sges = {{reinterpret_cast<uint64_t>(message), 8, 0}},
                                      .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED});
    const ibv_wc_status sent = soft_test::wait_for_one(sender.cq()).status;
    if (error != 0 || sent != (is_one_more ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_SUCCESS)) {
      return company.fail("of " + std::to_string(posted) + " shared receives, the message " +
                          std::to_string(i) + " ends with " + ibv_wc_status_str(sent));
    }
    if (is_one_more) return;
    const uint64_t id = soft_test::wait_for_one(receiver.cq()).wr_id;
    if ((id & kIsCommon) == 0 ||
        !company.is_posted[(id & ~kIsCommon) % kCommonSlots].exchange(false)) {
      return company.fail("a shared receive is there that was not posted");
    }
  }
}

}  // namespace

std::string run_crowd(Board& board, uint32_t process, uint64_t seed, uint32_t steps) {
  Company company(board, process);
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (uint32_t i = 0; i < kCrowdThreads; ++i) {
      workers.push_back(std::make_unique<Worker>(company, i, seed));
    }
    std::vector<Thread> threads;
    for (auto& worker : workers) {
      threads.push_back(start_thread("crowd", [&worker, steps] { worker->run(steps); }));
    }
    for (Thread& thread : threads) thread.join();
  }
  if (board.failed.load() == 0) drain_shared_receives(company);
  return company.failure;
}

}  // namespace verbena::soft_lifecycle
