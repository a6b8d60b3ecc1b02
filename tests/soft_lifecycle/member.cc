// A member: a process that does what the test says, and nothing by itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "tests/soft/process.h"
#include "tests/soft/verbs.h"
#include "tests/soft_lifecycle/script.h"

namespace verbena::soft_lifecycle {
namespace {

using soft_test::Buffer;
using soft_test::kAllAccess;
using soft_test::Link;
using soft_test::must;
using soft_test::Node;

constexpr ReliabilityOptions kPatient = {.retry_count = 7, .rnr_retry_count = 7, .ack_timeout = 0};

struct Held {
  std::optional<CompletionChannel> channel;
  std::optional<CompletionQueue> cq;
  std::optional<QueuePair> queue_pair;
};

class Member {
 public:
  // On one completion queue all, or each on its own.
  Member(Link& link, bool on_one_queue) : link_(link) {
    if (on_one_queue) make_queue(all_);
    arena_ = static_cast<std::byte*>(
        mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    Answer hello;
    hello.arena = reinterpret_cast<uint64_t>(arena_);
    link_.put(hello);
  }

  int run() {
    for (;;) {
      const auto command = link_.get<Command>();
      if (command.op == Op::kLeave) _exit(0);
      if (command.op == Op::kExec) {
        execl("/bin/sleep", "sleep", "600", nullptr);
        _exit(1);
      }
      answer_ = Answer();
      carry_out(command);
      link_.put(answer_);
      if (command.op == Op::kClose) return 0;
    }
  }

 private:
  void carry_out(const Command& command) {
    Held& held = held_[command.object % kQueuePairs];
    switch (command.op) {
      case Op::kMake:
        make(held, command);
        break;
      case Op::kDestroy:
        answer_.error = destroy(held);
        break;
      case Op::kConnect:
        told(held.queue_pair->connect(command.peer,
                                      command.patient ? kPatient : soft_test::kImpatient));
        break;
      case Op::kReset:
        to_reset(held);
        break;
      case Op::kError:
        told(held.queue_pair->to_error());
        break;
      case Op::kAwaitState:
        answer_.error = soft_test::wait_until([&] {
          return soft_test::state_of(node_, held.queue_pair->get()) == command.state;
        })
                            ? 0
                            : ETIMEDOUT;
        break;
      case Op::kReceive:
        answer_.error =
            soft_test::post_receive(held.queue_pair->get(), command.id,
                                    {messages_.sge(receive_at(command), command.bytes)});
        break;
      case Op::kReceiveShared:
        answer_.error = soft_test::post_receive(
            srq_.get(), command.id, {messages_.sge(shared_at(command.id), command.bytes)});
        break;
      case Op::kSend:
        send(held, command);
        break;
      case Op::kAwait:
        await(held, command);
        break;
      case Op::kArm:
        answer_.error = ibv_req_notify_cq(queue_of(held).get(), 0);
        break;
      case Op::kAwaitEvent:
        await_event(held);
        break;
      case Op::kRegister:
      case Op::kDeregister:
      case Op::kRenew:
      case Op::kScribble:
      case Op::kImage:
        of_memory(command);
        break;
      case Op::kFork:
        answer_.pid = stay_behind();
        break;
      case Op::kClose:
        close();
        break;
      case Op::kExec:
      case Op::kLeave:
        break;
    }
  }

  void told(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "member %d: %s\n", getpid(), status.message().c_str());
    answer_.error = EINVAL;
  }

  static size_t sends_at(uint32_t object, uint64_t id) {
    return (object * 2 * kSlots + slot_of(id)) * size_t{kSlotBytes};
  }
  static size_t receives_at(uint32_t object, uint64_t id) {
    return (object * 2 * kSlots + kSlots + slot_of(id)) * size_t{kSlotBytes};
  }
  static size_t receive_at(const Command& command) {
    return receives_at(command.object, command.id);
  }
  static size_t shared_at(uint64_t id) {
    return (kQueuePairs * 2 * kSlots + slot_of(id)) * size_t{kSlotBytes};
  }

  static unsigned access_of(bool unreliable) {
    return unreliable ? unsigned{IBV_ACCESS_REMOTE_WRITE} : kAllAccess;
  }

  void make_queue(Held& held) {
    held.channel = must(CompletionChannel::create(node_.device));
    held.cq =
        must(CompletionQueue::create(node_.device, {.depth_cqes = 512, .channel = &*held.channel}));
  }
  CompletionQueue& queue_of(Held& held) { return all_.cq ? *all_.cq : *held.cq; }

  void make(Held& held, const Command& command) {
    const bool shared = command.shared;
    if (!all_.cq) make_queue(held);
    held.queue_pair = must(QueuePair::create(
        node_.domain, {.transport = command.unreliable ? Transport::kUc : Transport::kRc,
                       .send_cq = &queue_of(held),
                       .recv_cq = &queue_of(held),
                       .shared_receive_queue = shared ? &srq_ : nullptr,
                       .send_depth_wrs = 2 * kSlots,
                       .recv_depth_wrs = kSlots,
                       .max_send_sges = 1,
                       .max_recv_sges = 1,
                       .max_inline_bytes = kInlineBytes}));
    told(held.queue_pair->init(access_of(command.unreliable)));
    unreliable_[&held - held_] = command.unreliable;
    answer_.address = must(held.queue_pair->address());
    shared_[&held - held_] = shared;
  }

  // A handle says nothing where the device refuses, but the device does.
  int refused() const { return node_.control().last_error()[0] == '\0' ? 0 : EBUSY; }

  int destroy(Held& held) {
    if (!held.queue_pair) return 0;
    held.queue_pair.reset();
    if (const int error = refused(); error != 0 || all_.cq) return error;
    held.cq.reset();
    if (const int error = refused(); error != 0) return error;
    held.channel.reset();
    return refused();
  }

  void to_reset(Held& held) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    answer_.error = node_.control().modify_qp(held.queue_pair->get(), &attributes, IBV_QP_STATE);
    if (answer_.error == 0) told(held.queue_pair->init(access_of(unreliable_[&held - held_])));
  }

  void send(Held& held, const Command& command) {
    const size_t at = sends_at(command.object, command.id);
    if (command.opcode == IBV_WR_RDMA_READ || command.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      std::memset(messages_.data() + at, 0, command.bytes);
    } else {
      messages_.fill(command.seed, at, command.bytes);
    }
    answer_.error =
        soft_test::post(held.queue_pair->get(), {.id = command.id,
                                                 .opcode = command.opcode,
                                                 .sges = {messages_.sge(at, command.bytes)},
                                                 .flags = command.flags | IBV_SEND_SIGNALED,
                                                 .remote_address = command.remote,
                                                 .rkey = command.rkey,
                                                 .immediate = static_cast<uint32_t>(command.seed),
                                                 .compare_add = command.add});
  }

  uint32_t object_of(const ibv_wc& wc) const {
    for (uint32_t i = 0; i < kQueuePairs; ++i) {
      if (held_[i].queue_pair && held_[i].queue_pair->number() == wc.qp_num) return i;
    }
    return kQueuePairs;
  }

  void note(const ibv_wc& wc) {
    if (answer_.count == Answer::kMost) return;
    Found& found = answer_.found[answer_.count++];
    const uint32_t object = object_of(wc);
    found = {.object = object, .id = wc.wr_id, .status = wc.status};
    if (object == kQueuePairs) return;
    if (wc.status != IBV_WC_SUCCESS) return;
    const bool sent = (wc.wr_id & kSendBit) != 0;
    if (sent && wc.opcode != IBV_WC_RDMA_READ && wc.opcode != IBV_WC_FETCH_ADD) return;
    // Of a WRITE with an immediate, nothing is in the receive.
    found.bytes = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? 0 : wc.byte_len;
    const size_t at = sent              ? sends_at(object, wc.wr_id)
                      : shared_[object] ? shared_at(wc.wr_id)
                                        : receives_at(object, wc.wr_id);
    found.hash = hash_of(messages_.data() + at, found.bytes);
  }

  void await(Held& held, const Command& command) {
    const auto poll = [&] {
      ibv_wc wc;
      const int got = ibv_poll_cq(queue_of(held).get(), 1, &wc);
      if (got == 1) note(wc);
      if (got < 0) answer_.error = EIO;
      return got == 1;
    };
    if (!soft_test::wait_until([&] {
          while (poll()) {
          }
          return answer_.count >= command.count || answer_.error != 0;
        })) {
      answer_.error = ETIMEDOUT;
    }
  }

  void await_event(Held& held) {
    CompletionChannel& channel = all_.channel ? *all_.channel : *held.channel;
    Result<ibv_cq*> event = channel.wait(static_cast<int64_t>(soft_test::kPatienceNs));
    answer_.error = event.ok() && *event == queue_of(held).get() ? 0 : ETIMEDOUT;
  }

  void of_memory(const Command& command) {
    std::byte* const at = arena_ + command.offset;
    switch (command.op) {
      case Op::kRegister: {
        const Range& range = kRegionRanges[command.object];
        Result<MemoryRegion> region =
            MemoryRegion::create(node_.domain, arena_ + range.offset, range.size_bytes, kAllAccess);
        told(region.status());
        if (!region.ok()) return;
        regions_[command.object] = std::move(*region);
        answer_.key = regions_[command.object]->rkey();
        return;
      }
      case Op::kDeregister:
        regions_[command.object].reset();
        answer_.error = refused();
        return;
      case Op::kRenew:
        if (command.remaps) {
          munmap(at, command.bytes);
          if (mmap(at, command.bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at) {
            answer_.error = errno;
          }
        } else if (madvise(at, command.bytes, MADV_DONTNEED) != 0) {
          answer_.error = errno;
        }
        return;
      case Op::kScribble:
        soft_test::fill_pattern(at, command.bytes, command.seed);
        return;
      default:
        answer_.hash = hash_of(arena_, kArenaBytes);
    }
  }

  // It has all that this process has, but its objects.
  pid_t stay_behind() {
    const pid_t child = fork();
    if (child != 0) return child;
    ::close(link_.descriptor());
    for (;;) pause();
  }

  void close() {
    for (Held& held : held_) {
      if (answer_.error == 0) answer_.error = destroy(held);
    }
    for (uint32_t i = 0; i < kRegions && answer_.error == 0; ++i) {
      if (regions_[i]) carry_out({.op = Op::kDeregister, .object = i});
    }
  }

  Link& link_;
  Answer answer_;
  std::byte* arena_ = nullptr;
  Node node_;
  Buffer messages_{node_, (kQueuePairs * 2 * kSlots + kSharedSlots) * size_t{kSlotBytes}};
  SharedReceiveQueue srq_ =
      must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = kSharedSlots}));
  Held all_;  // its completion queue, if there is one for all
  Held held_[kQueuePairs];
  bool shared_[kQueuePairs] = {};
  bool unreliable_[kQueuePairs] = {};
  std::optional<MemoryRegion> regions_[kRegions];
};

VERBENA_TEST_CHILD(lifecycle_member) {
  Member member(link, link.get<bool>());
  return member.run();
}

}  // namespace
}  // namespace verbena::soft_lifecycle
