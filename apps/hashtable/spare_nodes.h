// The nodes that a front-end has for itself, and how it gets some from the table and gives some
// back. The oldest one is used first. One exchange with the table is on its way at a time: two of
// the region's operations at most. Data path.
#pragma once

#include <cstdint>
#include <vector>

#include "hashtable/layout.h"
#include "verbena/remote.h"

namespace verbena::hashtable {

class SpareNodes {
 public:
  // Of operations whose completion means nothing by itself: a later one tells of them.
  static constexpr uint64_t kIgnoredToken = ~uint64_t{0};
  static constexpr uint32_t kOperations = 2;

  // Fewer are too few: what was freed last should stay readable for a while.
  static constexpr uint32_t kFew = 12;
  // More are given back.
  static constexpr uint32_t kMany = 64;

  // `token`: of its operations.
  SpareNodes(RemoteRegion& region, const NodeSpace& space, uint64_t token, uint32_t capacity)
      : region_(&region),
        space_(space),
        token_(token),
        nodes_(capacity),
        carrier_(space.node_bytes) {}

  uint32_t count() const { return count_; }
  // Room for so many more.
  uint32_t room() const { return static_cast<uint32_t>(nodes_.size()) - count_; }

  // A use of a node that nobody has seen. Needs count() > 0.
  NodePointer take();
  // A node that nobody can reach any more, by the pointer of its last use.
  void give(NodePointer node);

  bool is_busy() const { return step_ != Step::kIdle; }
  // The last refill found nothing, and nothing was given since.
  bool is_starved() const { return starved_; }
  // Each begins an exchange, which handle() carries on. False: the region's operation failed.
  bool begin_refill();
  bool begin_spill();
  enum class Event : uint8_t { kNone, kEnd, kFailed, kDamaged };
  // Takes a completion with the pool's token. kEnd: the exchange is over.
  Event handle(const RemoteCompletion& done);

  uint64_t refills() const { return refills_; }
  uint64_t spills() const { return spills_; }

 private:
  enum class Step : uint8_t {
    kIdle,
    kTakingFresh,
    kReadingList,
    kReadingCarrier,
    kPopping,
    kPushing
  };

  Event end(bool got);
  Event post(PostResult posted) {
    return posted == PostResult::kPosted ? Event::kNone : Event::kFailed;
  }
  Event read_list();
  Event read_carrier(NodePointer head);
  Event take_carrier(const RemoteCompletion& done);
  Event push();

  RemoteRegion* region_;
  const NodeSpace space_;
  const uint64_t token_;
  std::vector<NodePointer> nodes_;  // a queue
  uint32_t first_ = 0;
  uint32_t count_ = 0;

  Step step_ = Step::kIdle;
  bool starved_ = false;
  bool fresh_is_used_up_ = false;
  NodePointer head_;  // of the list of free nodes, as far as it is known
  NodePointer behind_carrier_;
  uint32_t carried_ = 0;  // nodes that are popped with the carrier, or pushed with it
  uint32_t misreads_ = 0;
  NodePointer popped_[31];     // NodeSpace::carried_nodes()
  std::vector<char> carrier_;  // to be pushed
  NodePointer carrier_node_;
  uint64_t refills_ = 0;
  uint64_t spills_ = 0;
};

}  // namespace verbena::hashtable
