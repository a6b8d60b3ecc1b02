#include "src/bench/message/replay_schedule.h"

#include <algorithm>
#include <numeric>

#include "src/bench/message/message_collectives.h"

namespace verbena::bench {

namespace {

using trace::Event;
using trace::Operation;
using Kind = ReplayStep::Kind;

class Schedule {
 public:
  Schedule(const Event& event, std::span<const uint64_t> list, std::span<const uint32_t> members,
           uint32_t self)
      : event_(event),
        list_(list),
        members_(members),
        size_(static_cast<uint32_t>(members.size())),
        self_(self) {}

  std::vector<ReplayStep> make() {
    const uint32_t root = event_.peer;
    switch (event_.operation) {
      case Operation::kBroadcast:
        down(root, event_.bytes);
        break;
      case Operation::kReduce:
        up(root, event_.bytes);
        break;
      case Operation::kAllreduce:
        up(0, event_.bytes);
        down(0, event_.bytes);
        break;
      case Operation::kScan:
        scan();
        break;
      case Operation::kGather:
        event_.has(trace::kVariesAtRoot) ? to_root() : gather(root);
        break;
      case Operation::kScatter:
        event_.has(trace::kVariesAtRoot) ? from_root(root) : scatter(root);
        break;
      case Operation::kAllgather:
        ring();
        break;
      case Operation::kAlltoall:
        exchange();
        break;
      case Operation::kReduceScatter: {
        up(0, total());
        from_root(0);
        break;
      }
      default:
        barrier();
        break;
    }
    return std::move(steps_);
  }

  // Of all members, of operations that have as much for each.
  uint64_t total() const {
    return list_.empty() ? event_.bytes * size_
                         : std::accumulate(list_.begin(), list_.end(), uint64_t{0});
  }

 private:
  void add(Kind kind, uint32_t member, uint64_t offset, uint64_t bytes) {
    steps_.push_back({kind, members_[member], offset, bytes});
  }
  void send(uint32_t to, uint64_t bytes, uint64_t offset = 0) {
    add(Kind::kSend, to, offset, bytes);
  }
  void receive(uint32_t from, uint64_t bytes, uint64_t offset = 0) {
    add(Kind::kReceive, from, offset, bytes);
  }
  void wait() { steps_.push_back({}); }
  void copy(uint64_t bytes) {
    if (bytes > 0) steps_.push_back({.kind = Kind::kCopy, .bytes = bytes});
  }

  // Trees are those of root 0, turned.
  BinomialPlace tree(uint32_t root) const {
    return binomial_place((self_ + size_ - root) % size_, size_);
  }
  uint32_t turned(uint32_t number, uint32_t root) const { return (number + root) % size_; }
  uint64_t part(uint32_t member) const { return list_.empty() ? event_.bytes : list_[member]; }

  void barrier() {
    const BarrierPlace place = barrier_place(self_, size_);
    if (place.is_proxied) {
      send(place.other, 0);
      receive(place.other, 0);
      return wait();
    }
    if (place.is_proxy) {
      receive(place.other, 0);
      wait();
    }
    for (const uint32_t partner : place.partners) {
      receive(partner, 0);
      send(partner, 0);
      wait();
    }
    if (place.is_proxy) send(place.other, 0);
    wait();
  }

  void down(uint32_t root, uint64_t bytes) {
    const BinomialPlace place = tree(root);
    if (self_ != root) {
      receive(turned(place.parent, root), bytes);
      wait();
    }
    for (const auto& child : place.children) send(turned(child.rank, root), bytes);
    wait();
  }
  void up(uint32_t root, uint64_t bytes) {
    const BinomialPlace place = tree(root);
    for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
      receive(turned(child->rank, root), bytes, bytes);
      wait();
      copy(bytes);
    }
    if (self_ != root) send(turned(place.parent, root), bytes);
    wait();
  }
  void scatter(uint32_t root) {
    const BinomialPlace place = tree(root);
    if (self_ != root) {
      receive(turned(place.parent, root), place.subtree * event_.bytes);
      wait();
    }
    for (const auto& child : place.children) {
      const uint64_t first = (turned(child.rank, root) + size_ - self_) % size_;
      send(turned(child.rank, root), child.subtree * event_.bytes, first * event_.bytes);
    }
    wait();
    copy(event_.bytes);
  }
  void gather(uint32_t root) {
    const BinomialPlace place = tree(root);
    for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
      const uint64_t first = (turned(child->rank, root) + size_ - self_) % size_;
      receive(turned(child->rank, root), child->subtree * event_.bytes, first * event_.bytes);
      wait();
    }
    if (self_ != root) send(turned(place.parent, root), place.subtree * event_.bytes);
    wait();
  }
  void from_root(uint32_t root) {
    if (self_ != root) {
      receive(root, part(self_));
    } else {
      for (uint32_t to = 0; to < size_; ++to) {
        if (to != self_) send(to, part(to));
      }
      copy(part(self_));
    }
    wait();
  }
  void to_root() {
    const uint32_t root = event_.peer;
    if (self_ != root) {
      send(root, event_.bytes);
    } else {
      uint64_t offset = 0;
      for (uint32_t from = 0; from < size_; ++from) {
        if (from != self_) receive(from, part(from), offset);
        offset += part(from);
      }
      copy(part(self_));
    }
    wait();
  }

  void scan() {
    for (uint32_t distance = 1; distance < size_; distance *= 2) {
      if (self_ + distance < size_) send(self_ + distance, event_.bytes);
      if (self_ >= distance) receive(self_ - distance, event_.bytes, event_.bytes);
      wait();
      if (self_ >= distance) copy(event_.bytes);
    }
  }
  void ring() {
    std::vector<uint64_t> offsets = {0};
    for (uint32_t member = 0; member < size_; ++member) {
      offsets.push_back(offsets.back() + part(member));
    }
    copy(part(self_));
    const uint32_t right = (self_ + 1) % size_;
    const uint32_t left = (self_ + size_ - 1) % size_;
    for (uint32_t step = 0; step + 1 < size_; ++step) {
      const uint32_t sent = (self_ + size_ - step) % size_;
      const uint32_t received = (left + size_ - step) % size_;
      receive(left, part(received), offsets[received]);
      send(right, part(sent), offsets[sent]);
      wait();
    }
  }
  void exchange() {
    const auto sent = [&](uint32_t to) { return list_.empty() ? event_.bytes : list_[to]; };
    const auto received = [&](uint32_t from) {
      return list_.empty() ? event_.bytes : list_[size_ + from];
    };
    uint64_t sent_bytes = 0;
    for (uint32_t to = 0; to < size_; ++to) sent_bytes += sent(to);
    // What is received lies behind what is sent.
    std::vector<uint64_t> to_offsets = {0};
    std::vector<uint64_t> from_offsets = {sent_bytes};
    for (uint32_t member = 0; member < size_; ++member) {
      to_offsets.push_back(to_offsets.back() + sent(member));
      from_offsets.push_back(from_offsets.back() + received(member));
    }
    for (uint32_t i = 1; i < size_; ++i) {
      const uint32_t from = (self_ + size_ - i) % size_;
      receive(from, received(from), from_offsets[from]);
    }
    for (uint32_t i = 1; i < size_; ++i) {
      const uint32_t to = (self_ + i) % size_;
      send(to, sent(to), to_offsets[to]);
    }
    copy(sent(self_));
    wait();
  }

  const Event& event_;
  const std::span<const uint64_t> list_;
  const std::span<const uint32_t> members_;
  const uint32_t size_;
  const uint32_t self_;
  std::vector<ReplayStep> steps_;
};

}  // namespace

std::vector<ReplayStep> collective_schedule(const Event& event, std::span<const uint64_t> list,
                                            std::span<const uint32_t> members, uint32_t self) {
  return Schedule(event, list, members, self).make();
}

uint64_t collective_scratch_bytes(const Event& event, std::span<const uint64_t> list,
                                  uint64_t members) {
  const uint64_t all =
      list.empty() ? event.bytes * members : std::accumulate(list.begin(), list.end(), uint64_t{0});
  switch (event.operation) {
    case Operation::kBarrier:
      return 1;
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kAllreduce:
    case Operation::kScan:
      return 2 * event.bytes + 1;
    case Operation::kAlltoall:
      return list.empty() ? 2 * all + 1 : all + 1;
    case Operation::kReduceScatter:
      return 2 * all + 1;
    default:
      return all + 1;
  }
}

}  // namespace verbena::bench
