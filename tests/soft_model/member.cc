#include "tests/soft_model/member.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/soft_model/posting.h"

namespace verbena::soft_model {
namespace {

// No run that passes comes near this.
constexpr uint64_t kPatienceNs = 300'000'000'000;
constexpr int kPatienceMs = 300'000;
constexpr size_t kMostExtraRegions = 3;

bool is_counting(const Request& request) {
  return request.key == Key::kWord && request.status == IBV_WC_SUCCESS;
}

}  // namespace

Member::Member(World& world, const Life& life, uint32_t index)
    : world_(world),
      life_(life),
      index_(index),
      model_(life),
      generator_(life, model_),
      books_(life, model_, index),
      objects_(life, index),
      random_(life.seed + index),
      next_(life.ends.size()),
      late_(life.ends.size()),
      words_(life.members.size()) {
  for (uint32_t i = 0; i < life.ends.size(); ++i) {
    if (life.ends[i].member == index) own_.push_back(i);
  }
}

Member::~Member() {
  for (ibv_mr* region : extra_) objects_.deregister(region);
}

void Member::run() {
  begin();
  for (uint32_t round = 0; round < life_.rounds; ++round) run_round(round);
}

void Member::begin() {
  Notice notice;
  objects_.describe(notice);
  notices_ = world_.exchange(index_, notice);
  for (const uint32_t i : own_) {
    const uint32_t peer = life_.ends[i].peer;
    objects_.connect(i, peer == kNobody ? 0 : notices_[life_.ends[peer].member].ends[peer].number);
  }
  world_.exchange(index_, notice);
}

void Member::run_round(uint32_t number) {
  round_ = number;
  for (size_t i = 0; i < words_.size(); ++i) {
    words_[i] = model_.word(static_cast<uint32_t>(i), kWordAt);
  }
  const Round plan = generator_.next();
  for (const uint32_t i : own_) {
    const uint64_t source = life_.ends[i].places.source;
    std::memcpy(objects_.arena() + source, model_.image(index_).data() + source, life_.area_bytes);
  }
  progress_ns_ = now_ns();
  renew(plan);
  Notice notice;
  objects_.describe(notice);
  notice.begins_last = life_.is_last(number) ? 1 : 0;
  notices_ = world_.exchange(index_, notice);
  notice.begins_last = 0;
  books_.begin_round(number, plan, notices_);
  work(plan);
  wait_for_all(plan);
  take_tickets(plan, notice);
  // From here on nobody touches anybody's memory.
  const Notices after = world_.exchange(index_, notice);
  for (int look = 0; look < 8; ++look) poll_all();  // what is too much is found here
  compare();
  const bool is_counted = life_.victim == kNobody || !life_.is_last(number);
  uint64_t sum = 0;
  for (const Notice& each : after) sum += each.ticket_sums[index_];
  uint64_t expected = 0;
  for (uint64_t word = words_[index_]; word < model_.word(index_, kWordAt); ++word) {
    expected += word;
  }
  if (is_counted && sum != expected) {
    books_.fail(kNobody,
                fmt::format("what was counted up returned {} in all, not {}", sum, expected));
  }
  world_.exchange(index_, notice);
}

// ---- between rounds ----

void Member::renew(const Round& plan) {
  bool any_reset = false;
  for (uint32_t i = 0; i < life_.ends.size(); ++i) any_reset |= plan.ends[i].is_reset;
  for (const uint32_t i : own_) {
    if (!plan.ends[i].is_reset) continue;
    objects_.reset(i);
    books_.end(i) = {};
    books_.note(i, "is reset");
  }
  if (any_reset) {
    world_.exchange(index_, {});
    for (const uint32_t i : own_) {
      if (!plan.ends[i].is_reset) continue;
      const uint32_t peer = life_.ends[i].peer;
      objects_.connect(i, notices_[life_.ends[peer].member].ends[peer].number);
    }
    world_.exchange(index_, {});
  }
  // Completions of these are taken by the numbers of the round before, which are the same.
  books_.begin_round(round_, plan, notices_);
  for (const uint32_t i : own_) {
    const EndRound& end = plan.ends[i];
    if (end.invalidates_window) {
      wait_until_sent(i);
      expect(i, 1);
      books_.note(i, "LOCAL_INV");
      if (!post_invalidate(objects_, i, books_.end(i).posted.back().id)) {
        books_.fail(i, "there is no room for a LOCAL_INV");
      }
      wait_until_sent(i);
    }
    if (end.registers_anew) objects_.register_target(i);
    if (end.binds_window) {
      wait_until_sent(i);
      expect(i, 1);
      books_.note(i, "BIND_MW");
      if (!post_bind(life_, objects_, i, books_.end(i).posted.back().id)) {
        books_.fail(i, "there is no room for a BIND_MW");
      }
      wait_until_sent(i);
    }
    uint32_t early = end.early_receives;
    post_receives(i, &early);
    next_[i] = 0;
    late_[i] = end.late_receives;
  }
  uint32_t early = plan.early_shared[index_];
  post_receives(kNobody, &early);
  late_shared_ = plan.late_shared[index_];
  if (early != 0) books_.fail(kNobody, "there is no room for a shared receive");
}

// The next requests of the model are those that are about to be posted.
void Member::expect(uint32_t end, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    books_.end(end).posted.push_back(model_.end(end).sent.front());
    model_.end(end).sent.pop_front();
  }
}

bool Member::sends_done(uint32_t end) const {
  for (const Sent& sent : const_cast<Books&>(books_).end(end).posted) {
    if (sent.signaled) return false;
  }
  return true;
}

void Member::wait_until_sent(uint32_t end) {
  while (!sends_done(end)) {
    if (!poll_all()) idle();
  }
}

// ---- traffic ----

void Member::post_receives(uint32_t end, uint32_t* count) {
  while (*count > 0) {
    if (end == kNobody) {
      std::vector<uint32_t>& free = books_.free_slots();
      if (free.empty()) return;
      const uint32_t slot = free.back();
      const uint64_t number = books_.next_shared;
      const Receive receive = receive_of(life_, index_, kNobody, number, slot);
      // Who polls frees a place before the slot is free.
      if (post_receive(objects_, kNobody, receive, kReceiveId | kSharedId | slot) != 0) return;
      free.pop_back();
      books_.shared()[slot] = number;
      ++books_.next_shared;
    } else {
      EndBooks& books = books_.end(end);
      if (books.receives.size() == life_.receive_depth) return;
      const uint64_t number = books.next_receive;
      const auto slot = static_cast<uint32_t>(number % life_.receive_depth);
      const Receive receive = receive_of(life_, index_, end, number, slot);
      const int error = post_receive(objects_, end, receive, kReceiveId | number);
      if (error != 0) books_.fail(end, fmt::format("posting a receive returns {}", error));
      books_.note(end, fmt::format("posts receive {} of {} bytes in {} pieces", number,
                                   receive.capacity_bytes, receive.pieces.size()));
      books.receives.push_back(number);
      ++books.next_receive;
    }
    --*count;
  }
}

void Member::post_some(uint32_t end, const Round& plan) {
  const std::vector<Request>& requests = plan.ends[end].requests;
  const size_t next = next_[end];
  if (next == requests.size()) return;
  size_t count = std::min<size_t>(1 + random_.below(4), requests.size() - next);
  if (requests[next].after_to_error) {
    if (!sends_done(end)) return;
    objects_.to_error(end);
    books_.note(end, "to the error state");
  }
  for (size_t i = 1; i < count; ++i) {
    if (requests[next + i].after_to_error) count = i;
  }
  const uint64_t id = model_.end(end).sent.front().id;
  // Another thread's or process's polls cannot come first: this member takes all completions.
  const size_t taken =
      post_requests(life_, objects_, notices_, end, requests.data() + next, count, id);
  for (size_t i = 0; i < taken; ++i) {
    const Request& request = requests[next + i];
    books_.note(
        end, fmt::format("posts {}: opcode {} flags {:#x}, {} bytes in {} pieces, at {:#x} "
                         "by key {}{}{}",
                         id + i, static_cast<int>(request.opcode), request.flags, size_of(request),
                         request.pieces.size(), request.remote, static_cast<int>(request.key),
                         request.to == kNobody ? "" : fmt::format(", to {}", request.to),
                         request.status == IBV_WC_SUCCESS ? "" : ", wrong or flushed"));
  }
  expect(end, taken);
  next_[end] += taken;
}

void Member::work(const Round& plan) {
  if (own_.empty()) return;
  for (;;) {
    bool any_left = false;
    for (const uint32_t i : own_) any_left |= next_[i] < plan.ends[i].requests.size();
    if (!any_left) return;
    post_some(own_[random_.below(own_.size())], plan);
    if (random_.below(3) == 0 && !poll_all()) idle();
    if (random_.below(4) == 0) {
      for (const uint32_t i : own_) post_receives(i, &late_[i]);
      post_receives(kNobody, &late_shared_);
    }
    if (random_.below(24) == 0) change_regions();
  }
}

// Regions over the same memory, and over other memory, come and go.
void Member::change_regions() {
  if (extra_.size() == kMostExtraRegions) {
    const size_t which = random_.below(extra_.size());
    objects_.deregister(extra_[which]);
    extra_.erase(extra_.begin() + static_cast<ptrdiff_t>(which));
  }
  const uint64_t arena_bytes = life_.members[index_].arena_bytes;
  const uint64_t offset = random_.below(arena_bytes);
  extra_.push_back(objects_.register_bytes(offset, 1 + random_.below(arena_bytes - offset),
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
}

bool Member::all_done(const Round& plan) const {
  for (const uint32_t i : own_) {
    if (next_[i] < plan.ends[i].requests.size() || late_[i] > 0 || !books_.is_done(i)) return false;
  }
  return true;
}

void Member::wait_for_all(const Round& plan) {
  while (!all_done(plan)) {
    bool any_to_post = late_shared_ > 0;
    for (const uint32_t i : own_) {
      post_receives(i, &late_[i]);
      any_to_post |= late_[i] > 0;
    }
    post_receives(kNobody, &late_shared_);
    if (poll_all()) continue;
    if (objects_.channel() != nullptr && !any_to_post) {
      sleep();
    } else {
      idle();
    }
  }
}

void Member::idle() {
  sched_yield();
  if (now_ns() - progress_ns_ < kPatienceNs) return;
  books_.fail(kNobody, "what should come does not come:\n" + books_.waiting());
}

// Until a completion queue has something, unless it has it already.
void Member::sleep() {
  for (size_t i = 0; i < objects_.cq_count(); ++i) ibv_req_notify_cq(objects_.cq(i), 0);
  if (poll_all()) return;
  pollfd look{.fd = objects_.channel()->fd, .events = POLLIN, .revents = 0};
  int ready;
  while ((ready = poll(&look, 1, kPatienceMs)) < 0 && errno == EINTR) {
  }
  if (ready != 1) {
    books_.fail(kNobody, std::string("nobody wakes the sleeper, who ") +
                             (poll_all() ? "has missed something" : "has nothing") + ":\n" +
                             books_.waiting());
  }
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (objects_.node().control().get_cq_event(objects_.channel(), &cq, &context) == 0) {
    objects_.node().control().ack_cq_events(cq, 1);
  }
}

bool Member::poll_extended(ibv_cq_ex* cq) {
  const VerbsControl& control = objects_.node().control();
  ibv_poll_cq_attr attributes{};
  const int error = ibv_start_poll(cq, &attributes);
  if (error == ENOENT) return false;
  if (error != 0)
    books_.fail(kNobody, fmt::format("ibv_start_poll returns {}: {}", error, control.last_error()));
  for (uint64_t left = random_.below(8);; --left) {
    ibv_wc wc{};
    wc.wr_id = cq->wr_id;
    wc.status = cq->status;
    wc.qp_num = ibv_wc_read_qp_num(cq);
    wc.src_qp = ibv_wc_read_src_qp(cq);
    wc.opcode = ibv_wc_read_opcode(cq);
    wc.byte_len = ibv_wc_read_byte_len(cq);
    wc.wc_flags = ibv_wc_read_wc_flags(cq);
    if ((wc.wc_flags & IBV_WC_WITH_INV) != 0) {
      wc.invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
    } else {
      wc.imm_data = ibv_wc_read_imm_data(cq);
    }
    books_.take(wc);
    if (left == 0 || ibv_next_poll(cq) != 0) break;
  }
  ibv_end_poll(cq);
  return true;
}

bool Member::poll_all() {
  bool any = false;
  for (size_t i = 0; i < objects_.cq_count(); ++i) {
    ibv_cq* cq = objects_.cq(i);
    if (life_.members[index_].extended_cqs[i] && random_.below(8) != 0) {
      any |= poll_extended(reinterpret_cast<ibv_cq_ex*>(cq));
      continue;
    }
    ibv_wc wc[8];
    const int got = ibv_poll_cq(cq, static_cast<int>(1 + random_.below(8)), wc);
    if (got < 0) books_.fail(kNobody, fmt::format("ibv_poll_cq returns {}", got));
    for (int k = 0; k < got; ++k) books_.take(wc[k]);
    any |= got > 0;
  }
  if (any) progress_ns_ = now_ns();
  return any;
}

// ---- comparison ----

// What the shared words held depends on who came first: each value comes once, and in order.
void Member::take_tickets(const Round& plan, Notice& notice) {
  Bytes& image = model_.image(index_);
  for (const uint32_t i : own_) {
    const uint64_t tickets = life_.ends[i].places.tickets;
    std::memcpy(image.data() + tickets, objects_.arena() + tickets, kTickets * sizeof(uint64_t));
    if (life_.victim != kNobody && life_.is_last(round_)) continue;
    const uint32_t peer = life_.ends[i].peer == kNobody ? 0 : life_.ends[life_.ends[i].peer].member;
    uint64_t least = words_[peer];
    for (const Request& request : plan.ends[i].requests) {
      if (!is_counting(request)) continue;
      const uint64_t value = model_.word(index_, request.pieces[0].offset);
      if (value < least || value >= model_.word(peer, kWordAt)) {
        books_.fail(i, fmt::format("an atomic returned {}; the word went from {} to {}, and this "
                                   "queue pair has had all below {}",
                                   value, words_[peer], model_.word(peer, kWordAt), least));
      }
      least = value + 1;
      notice.ticket_sums[peer] += value;
    }
  }
}

// Where the victim's end leaves open what is there.
bool Member::may_differ(uint64_t offset) const {
  if (life_.victim == kNobody || !life_.is_last(round_)) return false;
  if (offset >= kWordAt && offset < kWordAt + sizeof(uint64_t)) return true;
  const uint64_t area_bytes = life_.area_bytes;
  bool shared_is_cut = false;
  for (const uint32_t i : own_) {
    if (!life_.is_cut(i, round_)) continue;
    const Places& places = life_.ends[i].places;
    const auto in = [&](uint64_t begin, uint64_t size_bytes) {
      return offset >= begin && offset - begin < size_bytes;
    };
    if (in(places.landing, area_bytes) || in(places.target, area_bytes) ||
        in(places.receives, uint64_t{life_.receive_depth} * life_.slot_bytes)) {
      return true;
    }
    shared_is_cut |= life_.ends[i].shared_receives;
  }
  return shared_is_cut && offset >= life_.members[index_].shared_receives;
}

void Member::compare() {
  const Bytes& image = model_.image(index_);
  const std::byte* arena = objects_.arena();
  if (std::memcmp(image.data(), arena, image.size()) == 0) return;
  for (uint64_t offset = 0; offset < image.size(); ++offset) {
    if (image[offset] == arena[offset] || may_differ(offset)) continue;
    uint32_t near = kNobody;
    std::string where = "in no queue pair's memory";
    for (const uint32_t i : own_) {
      const Places& places = life_.ends[i].places;
      if (offset + 200 < places.source) continue;
      near = i;
      where = fmt::format(
          "source at {:#x}, landing at {:#x}, target at {:#x}, tickets at {:#x}, receives at {:#x}",
          places.source, places.landing, places.target, places.tickets, places.receives);
    }
    books_.fail(near, fmt::format("byte {:#x} is {:#x}, not {:#x}; {}; shared receives at {:#x}",
                                  offset, static_cast<unsigned>(arena[offset]),
                                  static_cast<unsigned>(image[offset]), where,
                                  life_.members[index_].shared_receives));
  }
}

}  // namespace verbena::soft_model
