#include "hashtable/spare_nodes.h"

#include <algorithm>
#include <cassert>
#include <span>

#include "verbena/data_path.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kFreshAtOnce = 16;
// A node that the list's unchanged head points to is whole. A few times more, and it is damaged.
constexpr uint32_t kMostHeadMisreads = 8;

}  // namespace

NodePointer SpareNodes::take() {
  assert(count_ > 0);
  const NodePointer node = nodes_[first_];
  first_ = first_ + 1 < nodes_.size() ? first_ + 1 : 0;
  --count_;
  return node.next_use();
}

void SpareNodes::give(NodePointer node) {
  assert(count_ < nodes_.size());
  const uint64_t place = uint64_t{first_} + count_;
  nodes_[place < nodes_.size() ? place : place - nodes_.size()] = node;
  ++count_;
  starved_ = false;
}

bool SpareNodes::begin_refill() {
  assert(!is_busy());
  misreads_ = 0;
  starved_ = false;
  if (fresh_is_used_up_) return read_list() == Event::kNone;
  step_ = Step::kTakingFresh;
  return region_->post_fetch_and_add(space_.next_fresh, kFreshAtOnce, token_) ==
         PostResult::kPosted;
}

bool SpareNodes::begin_spill() {
  assert(!is_busy() && count_ > 0);
  // The carrier, and what it carries.
  carrier_node_ = take();
  carried_ = std::min(space_.carried_nodes(), count_);
  char* const payload = carrier_.data() + sizeof(NodeHeader);
  for (uint32_t i = 0; i < carried_; ++i) {
    const uint64_t word = take().word();
    copy_bytes(payload + i * sizeof(word), &word, sizeof(word));
  }
  carrier_node_ = carrier_node_.with_length(
      space_.length_of(carried_ * static_cast<uint32_t>(sizeof(uint64_t))));
  return push() == Event::kNone;
}

SpareNodes::Event SpareNodes::handle(const RemoteCompletion& done) {
  switch (step_) {
    case Step::kTakingFresh: {
      const auto first = done.value<uint64_t>();
      const uint64_t end_of_batch = std::min(first + kFreshAtOnce, space_.nodes);
      fresh_is_used_up_ = end_of_batch < first + kFreshAtOnce;
      if (first >= end_of_batch) return read_list();
      for (uint64_t index = first; index < end_of_batch; ++index) give(NodePointer::unused(index));
      return end(true);
    }
    case Step::kReadingList:
      return read_carrier(NodePointer(done.value<uint64_t>()));
    case Step::kReadingCarrier:
      return take_carrier(done);
    case Step::kPopping: {
      const NodePointer found(done.value<uint64_t>());
      if (found != head_) return read_carrier(found);
      give(head_);
      head_ = behind_carrier_;
      for (uint32_t i = 0; i < carried_; ++i) give(popped_[i]);
      return end(true);
    }
    case Step::kPushing: {
      const NodePointer found(done.value<uint64_t>());
      if (found != head_) {
        head_ = found;
        return push();
      }
      head_ = carrier_node_;
      ++spills_;
      step_ = Step::kIdle;
      return Event::kEnd;
    }
    case Step::kIdle:
      break;
  }
  assert(false);
  return Event::kFailed;
}

SpareNodes::Event SpareNodes::end(bool got) {
  step_ = Step::kIdle;
  starved_ = !got;
  if (got) ++refills_;
  return Event::kEnd;
}

SpareNodes::Event SpareNodes::read_list() {
  step_ = Step::kReadingList;
  return post(region_->post_read(space_.free_nodes, token_));
}

SpareNodes::Event SpareNodes::read_carrier(NodePointer head) {
  if (head.is_null()) return end(false);
  if (!space_.is_possible(head)) return Event::kDamaged;
  misreads_ = head == head_ ? misreads_ : 0;
  head_ = head;
  step_ = Step::kReadingCarrier;
  return post(region_->post_read(space_.offset_bytes(head), space_.size_bytes(head), token_));
}

SpareNodes::Event SpareNodes::take_carrier(const RemoteCompletion& done) {
  Node carrier;
  if (!space_.parse(head_, done.bytes.data(), &carrier)) {
    return ++misreads_ > kMostHeadMisreads ? Event::kDamaged : read_list();
  }
  carried_ = static_cast<uint32_t>(carrier.value.size() / sizeof(uint64_t));
  if (!carrier.key.empty() || carried_ > std::size(popped_)) return Event::kDamaged;
  for (uint32_t i = 0; i < carried_; ++i) {
    uint64_t word = 0;
    copy_bytes(&word, carrier.value.data() + i * sizeof(word), sizeof(word));
    popped_[i] = NodePointer(word);
    if (popped_[i].index() >= space_.nodes) return Event::kDamaged;
  }
  behind_carrier_ = carrier.next;
  step_ = Step::kPopping;
  return post(region_->post_compare_and_swap(space_.free_nodes, head_.word(),
                                             behind_carrier_.word(), token_));
}

SpareNodes::Event SpareNodes::push() {
  const auto value_bytes = static_cast<uint32_t>(carried_ * sizeof(uint64_t));
  seal(carrier_.data(), carrier_node_, head_, {.value_bytes = value_bytes});
  step_ = Step::kPushing;
  const std::span<const char> bytes{carrier_.data(), sizeof(NodeHeader) + value_bytes};
  if (region_->post_write(space_.offset_bytes(carrier_node_), bytes, kIgnoredToken) !=
      PostResult::kPosted) {
    return Event::kFailed;
  }
  return post(region_->post_compare_and_swap(space_.free_nodes, head_.word(), carrier_node_.word(),
                                             token_));
}

}  // namespace verbena::hashtable
