#include "src/bench/message/message_collectives.h"

#include <fmt/format.h>

#include <bit>

#include "src/base/runtime.h"
#include "src/bench/experiment/size_list.h"
#include "verbena/data_path.h"

namespace verbena::bench {

namespace {

// Messages of one operation, told apart where two ranks send each other more than one.
enum CollectiveStep : uint32_t { kDown = 16, kUp, kExchange, kRelease };

uint64_t blocks_of(const MessageRank& rank, const BinomialPlace& tree) {
  return rank.settings().test == MessageTest::kScatter ? tree.subtree : 1;
}

// Blocks of a scatter lie back to back: one message has several.
MessageBuffers buffer_of(uint64_t blocks, uint64_t size_bytes) {
  return {1, blocks * size_bytes, BufferPlacement::kPages};
}

}  // namespace

BinomialPlace binomial_place(uint32_t rank, uint32_t size) {
  BinomialPlace place;
  const uint32_t reach = rank == 0 ? std::bit_ceil(size) : 1u << std::countr_zero(rank);
  place.parent = rank - (rank == 0 ? 0 : reach);
  place.subtree = std::min(reach, size - rank);
  for (uint32_t half = reach / 2; half > 0; half /= 2) {
    if (rank + half < size) {
      place.children.push_back({rank + half, std::min(half, size - rank - half)});
    }
  }
  return place;
}

BarrierPlace barrier_place(uint32_t rank, uint32_t size) {
  BarrierPlace place;
  place.core = std::bit_floor(size);
  place.is_proxied = rank >= place.core;
  place.is_proxy = rank + place.core < size && !place.is_proxied;
  if (place.is_proxied) place.other = rank - place.core;
  if (place.is_proxy) place.other = rank + place.core;
  if (place.is_proxied) return place;
  for (uint32_t bit = 1; bit < place.core; bit *= 2) place.partners.push_back(rank ^ bit);
  return place;
}

uint64_t collective_memory_bytes(const Point& point) {
  const MessageSettings& settings = message_settings(point);
  const uint64_t blocks = settings.test == MessageTest::kScatter ? message_ranks(point) : 1;
  return 2 * MessageBuffers::stride(blocks * settings.size_bytes, BufferPlacement::kPages);
}

MessageCollectives::MessageCollectives(MessageRank& rank)
    : rank_(rank),
      test_(rank.settings().test),
      size_bytes_(rank.settings().size_bytes),
      tree_(binomial_place(rank.number(), rank.size())),
      barrier_(barrier_place(rank.number(), rank.size())),
      data_(buffer_of(blocks_of(rank, tree_), size_bytes_)),
      other_(buffer_of(1, size_bytes_)) {}

Status MessageCollectives::open() const {
  if (data_.is_there() && other_.is_there()) return Status::ok_status();
  return {StatusCode::kLimitExceeded,
          fmt::format("this machine has no memory for blocks of {}; lower --size or --peers",
                      size_text(size_bytes_))};
}

std::vector<uint32_t> MessageCollectives::partners() const {
  std::vector<uint32_t> ranks;
  if (test_ == MessageTest::kBarrier || rank_.number() == 0) return ranks;
  if (tree_.parent != 0) ranks.push_back(tree_.parent);
  for (const BinomialPlace::Child& child : tree_.children) ranks.push_back(child.rank);
  return ranks;
}

bool MessageCollectives::run() {
  const uint64_t begun_ns = now_ns();
  bool done = false;
  bool synchronizes = false;
  switch (test_) {
    case MessageTest::kBroadcast:
      done = broadcast();
      break;
    case MessageTest::kScatter:
      done = scatter();
      break;
    case MessageTest::kAllreduce:
      done = allreduce();
      synchronizes = true;
      break;
    default:
      done = barrier();
      synchronizes = true;
      break;
  }
  if (!done) return false;
  rank_.note_collective(now_ns() - begun_ns);
  if (!synchronizes && !barrier()) return false;
  ++operations_;
  return true;
}

bool MessageCollectives::barrier() {
  const auto send = [this](uint32_t to, CollectiveStep step) {
    return rank_.send(to, step, &nothing_, 0);
  };
  const auto receive = [this](uint32_t from, CollectiveStep step) {
    return rank_.receive(from, step, &nothing_, 0);
  };
  if (barrier_.is_proxied) {
    return send(barrier_.other, kExchange) && receive(barrier_.other, kRelease) && rank_.wait_all();
  }
  if (barrier_.is_proxy && !(receive(barrier_.other, kExchange) && rank_.wait_all())) return false;
  for (const uint32_t partner : barrier_.partners) {
    if (!receive(partner, kExchange) || !send(partner, kExchange) || !rank_.wait_all()) {
      return false;
    }
  }
  return !barrier_.is_proxy || (send(barrier_.other, kRelease) && rank_.wait_all());
}

bool MessageCollectives::broadcast_down(char* bytes) {
  if (rank_.number() != 0) {
    if (!rank_.receive(tree_.parent, kDown, bytes, size_bytes_) || !rank_.wait_all()) return false;
  }
  for (const BinomialPlace::Child& child : tree_.children) {
    if (!rank_.send(child.rank, kDown, bytes, size_bytes_)) return false;
  }
  return rank_.wait_all();
}

bool MessageCollectives::broadcast() {
  char* const bytes = data_.at(0);
  if (rank_.verifies() && rank_.number() == 0) rank_.fill(bytes, size_bytes_, 0, operations_);
  if (!broadcast_down(bytes)) return false;
  if (rank_.verifies()) rank_.check(bytes, size_bytes_, 0, operations_);
  return true;
}

bool MessageCollectives::scatter() {
  char* const bytes = data_.at(0);
  if (rank_.number() != 0) {
    if (!rank_.receive(tree_.parent, kDown, bytes, tree_.subtree * size_bytes_) ||
        !rank_.wait_all()) {
      return false;
    }
  } else if (rank_.verifies()) {
    for (uint32_t rank = 0; rank < rank_.size(); ++rank) {
      rank_.fill(bytes + rank * size_bytes_, size_bytes_, rank, operations_);
    }
  }
  for (const BinomialPlace::Child& child : tree_.children) {
    const uint64_t first = child.rank - rank_.number();
    if (!rank_.send(child.rank, kDown, bytes + first * size_bytes_, child.subtree * size_bytes_)) {
      return false;
    }
  }
  if (!rank_.wait_all()) return false;
  // Its own block goes where the program wants it.
  copy_bytes(other_.at(0), bytes, size_bytes_);
  if (rank_.verifies()) rank_.check(other_.at(0), size_bytes_, rank_.number(), operations_);
  return true;
}

bool MessageCollectives::allreduce() {
  auto* const sums = reinterpret_cast<uint64_t*>(data_.at(0));
  auto* const arrived = reinterpret_cast<uint64_t*>(other_.at(0));
  const uint64_t count = size_bytes_ / sizeof(uint64_t);
  if (rank_.verifies()) {
    for (uint64_t i = 0; i < count; ++i) sums[i] = addend(rank_.number(), i);
  }
  // The smallest subtree is done first.
  for (auto child = tree_.children.rbegin(); child != tree_.children.rend(); ++child) {
    if (!rank_.receive(child->rank, kUp, other_.at(0), size_bytes_) || !rank_.wait_all()) {
      return false;
    }
    for (uint64_t i = 0; i < count; ++i) sums[i] += arrived[i];
    // Reads two numbers and writes one, of which the memory takes as long as of a copy.
    count_copied_bytes(size_bytes_);
  }
  if (rank_.number() != 0) {
    if (!rank_.send(tree_.parent, kUp, data_.at(0), size_bytes_) || !rank_.wait_all()) return false;
  }
  if (!broadcast_down(data_.at(0))) return false;
  if (rank_.verifies()) {
    for (uint64_t i = 0; i < count; ++i) {
      if (sums[i] != sum(i)) {
        rank_.note_mismatch();
        break;
      }
    }
  }
  return true;
}

}  // namespace verbena::bench
