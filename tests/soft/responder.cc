#include "tests/soft/responder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "src/base/shared_memory.h"
#include "src/device/verbs_control.h"

namespace verbena::soft_test {

namespace {

constexpr size_t kMaxParts = 16;
constexpr size_t kMaxCompletions = 16;

}  // namespace

struct Responder::Command {
  enum class Kind {
    kAddress,
    kConnect,
    kAddBuffer,
    kDeregister,
    kFill,
    kHasPattern,
    kLoad,
    kStore,
    kPostReceive,
    kWait,
    kIsEmpty,
    kSend,
    kState,
    kWaitForEvent,
    kHasEvent,
    kToError,
    kReset,
    kDestroyQueuePair,
  };
  Kind kind{};
  QueuePairAddress peer{};
  ReliabilityOptions reliability{};
  uint64_t value = 0;  // size, seed, id, count
  unsigned flags = 0;
  bool other_domain = false;
  uint32_t part_count = 0;
  Part parts[kMaxParts] = {};
};

struct Responder::Reply {
  QueuePairAddress address;
  Memory memory;
  uint64_t value;
  int status;
  uint32_t completion_count;
  ibv_wc completions[kMaxCompletions];
};

// Does what a command says, in the process where it is.
class Responder::Actor {
 public:
  explicit Actor(const ResponderOptions& options)
      : options_(options), other_domain_(must(ProtectionDomain::create(node_.device))) {
    if (options.srq_depth != 0) {
      srq_ = must(SharedReceiveQueue::create(
          node_.domain, {.depth_wrs = options.srq_depth, .max_sges = kMaxParts}));
    }
    end_ = std::make_unique<End>(node_, EndOptions{.with_channel = options.with_channel,
                                                   .shared_receive_queue = srq_ ? &*srq_ : nullptr,
                                                   .recv_depth = options.recv_depth,
                                                   .max_sges = kMaxParts,
                                                   .access = options.access});
  }

  Reply run(const Command& command) {
    using Kind = Command::Kind;
    Reply reply{};
    const Part part = command.parts[0];
    std::byte* at =
        part.buffer < buffers_.size() ? buffers_[part.buffer]->data() + part.offset : nullptr;
    switch (command.kind) {
      case Kind::kAddress:
        reply.address = end_->address();
        break;
      case Kind::kConnect:
        end_->connect(command.peer, command.reliability);
        break;
      case Kind::kAddBuffer:
        buffers_.push_back(std::make_unique<Buffer>(
            command.other_domain ? other_domain_ : node_.domain, command.value, command.flags));
        reply.memory = {buffers_.back()->address(), buffers_.back()->key()};
        break;
      case Kind::kDeregister:
        buffers_[part.buffer]->deregister();
        break;
      case Kind::kFill:
        fill_pattern(at, part.length_bytes, command.value);
        break;
      case Kind::kHasPattern:
        reply.value = soft_test::has_pattern(at, part.length_bytes, command.value) ? 1 : 0;
        break;
      case Kind::kLoad:
        reply.value = load_acquire(reinterpret_cast<uint64_t*>(at));
        break;
      case Kind::kStore:
        store_release(reinterpret_cast<uint64_t*>(at), command.value);
        break;
      case Kind::kPostReceive:
        reply.status = srq_ ? soft_test::post_receive(srq_->get(), command.value, sges(command))
                            : soft_test::post_receive(end_->qp(), command.value, sges(command));
        break;
      case Kind::kWait: {
        const std::vector<ibv_wc> got = soft_test::wait_for(end_->cq(), command.value);
        reply.completion_count = static_cast<uint32_t>(got.size());
        std::copy(got.begin(), got.end(), reply.completions);
        break;
      }
      case Kind::kIsEmpty:
        reply.value = soft_test::is_empty(end_->cq()) ? 1 : 0;
        break;
      case Kind::kSend:
        reply.status =
            post(end_->qp(), {.id = command.value, .sges = sges(command), .flags = command.flags});
        break;
      case Kind::kState:
        reply.value = state_of(node_, end_->qp());
        break;
      case Kind::kWaitForEvent: {
        const std::optional<ibv_event_type> event = soft_test::wait_for_event(node_);
        reply.status = event ? static_cast<int>(*event) : -1;
        break;
      }
      case Kind::kHasEvent:
        reply.value = soft_test::has_event(node_) ? 1 : 0;
        break;
      case Kind::kToError:
        must(end_->queue_pair().to_error());
        break;
      case Kind::kReset: {
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_RESET;
        EXPECT_EQ(node_.control().modify_qp(end_->qp(), &attributes, IBV_QP_STATE), 0);
        must(end_->queue_pair().init(options_.access));
        break;
      }
      case Kind::kDestroyQueuePair:
        end_.reset();
        break;
    }
    return reply;
  }

 private:
  std::vector<ibv_sge> sges(const Command& command) const {
    std::vector<ibv_sge> all;
    for (uint32_t i = 0; i < command.part_count; ++i) {
      const Part& part = command.parts[i];
      all.push_back(buffers_[part.buffer]->sge(part.offset, part.length_bytes));
    }
    return all;
  }

  ResponderOptions options_;
  Node node_;
  ProtectionDomain other_domain_;
  std::optional<SharedReceiveQueue> srq_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<End> end_;
};

struct ResponderRole {
  static int serve(Link& link) {
    const auto options = link.get<ResponderOptions>();
    Responder::Actor actor(options);
    // Ends when the test closes the link or sends a command that is none.
    for (;;) {
      const auto command = link.get<Responder::Command>();
      if (command.kind > Responder::Command::Kind::kDestroyQueuePair) return 0;
      link.put(actor.run(command));
    }
  }
};

VERBENA_TEST_CHILD(responder) { return ResponderRole::serve(link); }

Responder::Responder(Place place, const ResponderOptions& options) {
  if (place == Place::kThisProcess) {
    actor_ = std::make_unique<Actor>(options);
  } else {
    child_.emplace("responder");
    child_->link().put(options);
  }
}

Responder::~Responder() = default;

Responder::Reply Responder::run(const Command& command) {
  if (actor_ != nullptr) return actor_->run(command);
  child_->link().put(command);
  return child_->link().get<Reply>();
}

QueuePairAddress Responder::address() { return run({.kind = Command::Kind::kAddress}).address; }

void Responder::connect(const QueuePairAddress& peer, const ReliabilityOptions& options) {
  run({.kind = Command::Kind::kConnect, .peer = peer, .reliability = options});
}

void Responder::connect(End& end, const ReliabilityOptions& options) {
  connect(end.address(), options);
  end.connect(address(), options);
}

Responder::Memory Responder::add_buffer(size_t size_bytes, unsigned access, bool other_domain) {
  return run({.kind = Command::Kind::kAddBuffer,
              .value = size_bytes,
              .flags = access,
              .other_domain = other_domain})
      .memory;
}

void Responder::deregister(uint32_t buffer) {
  run({.kind = Command::Kind::kDeregister, .parts = {{buffer, 0, 0}}});
}

void Responder::fill(const Part& part, uint64_t seed) {
  run({.kind = Command::Kind::kFill, .value = seed, .parts = {part}});
}

bool Responder::has_pattern(const Part& part, uint64_t seed) {
  return run({.kind = Command::Kind::kHasPattern, .value = seed, .parts = {part}}).value != 0;
}

uint64_t Responder::load(uint32_t buffer, uint32_t offset) {
  return run({.kind = Command::Kind::kLoad, .parts = {{buffer, offset, 8}}}).value;
}

void Responder::store(uint32_t buffer, uint32_t offset, uint64_t value) {
  run({.kind = Command::Kind::kStore, .value = value, .parts = {{buffer, offset, 8}}});
}

int Responder::post_receive(uint64_t id, const std::vector<Part>& parts) {
  Command command{.kind = Command::Kind::kPostReceive, .value = id};
  command.part_count = static_cast<uint32_t>(parts.size());
  std::copy(parts.begin(), parts.end(), command.parts);
  return run(command).status;
}

int Responder::send(uint64_t id, const std::vector<Part>& parts, unsigned flags) {
  Command command{.kind = Command::Kind::kSend, .value = id, .flags = flags};
  command.part_count = static_cast<uint32_t>(parts.size());
  std::copy(parts.begin(), parts.end(), command.parts);
  return run(command).status;
}

std::vector<ibv_wc> Responder::wait_for(size_t count) {
  const Reply reply =
      run({.kind = Command::Kind::kWait, .value = std::min(count, kMaxCompletions)});
  EXPECT_EQ(reply.completion_count, count);
  return {reply.completions, reply.completions + reply.completion_count};
}

ibv_wc Responder::wait_for_one() {
  const std::vector<ibv_wc> got = wait_for(1);
  if (!got.empty()) return got.front();
  ibv_wc none{};
  none.status = static_cast<ibv_wc_status>(-1);
  return none;
}

bool Responder::is_empty() { return run({.kind = Command::Kind::kIsEmpty}).value != 0; }

ibv_qp_state Responder::state() {
  return static_cast<ibv_qp_state>(run({.kind = Command::Kind::kState}).value);
}

std::optional<ibv_event_type> Responder::wait_for_event() {
  const int type = run({.kind = Command::Kind::kWaitForEvent}).status;
  if (type < 0) return std::nullopt;
  return static_cast<ibv_event_type>(type);
}

bool Responder::has_event() { return run({.kind = Command::Kind::kHasEvent}).value != 0; }
void Responder::to_error() { run({.kind = Command::Kind::kToError}); }
void Responder::reset() { run({.kind = Command::Kind::kReset}); }
void Responder::destroy_queue_pair() { run({.kind = Command::Kind::kDestroyQueuePair}); }

void Responder::end(int signal) {
  if (!child_) return;
  if (signal != 0) {
    child_->signal(signal);
  } else {
    child_->link().put(Command{.kind = static_cast<Command::Kind>(
                                   static_cast<int>(Command::Kind::kDestroyQueuePair) + 1)});
  }
  child_->wait();
}

pid_t Responder::pid() const { return child_ ? child_->pid() : getpid(); }

}  // namespace verbena::soft_test
