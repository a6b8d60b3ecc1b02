#include "hashtable/front_end.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace verbena {
namespace hashtable {

FrontEnd::FrontEnd(RemoteRegion& region, const Layout& layout, uint32_t pending_limit)
    : region_(&region),
      layout_(layout),
      pool_room_((pending_limit + 1) * (kMostNodes + 1)),
      pool_(region, layout, NodePool::kMany + 2 * pool_room_),
      operations_(pending_limit),
      entries_(size_t{pending_limit} * layout.header().node_bytes),
      copy_(layout.header().node_bytes),
      full_(StatusCode::kLimitExceeded,
            "the hashtable is full: the " + std::to_string(layout.header().entries) +
                " entries that it was formatted for are in use, and what was spare; remove "
                "entries, or format a larger one"),
      crowded_(StatusCode::kLimitExceeded,
               "the hashtable has " + std::to_string(kMostNodes) +
                   " other entries with this key's hash, and no room for more; format it with "
                   "another hash_seed") {
  free_.reserve(pending_limit);
  waiting_.reserve(pending_limit);
  finished_.reserve(pending_limit);
  for (uint32_t i = pending_limit; i-- > 0;) {
    operations_[i].node = entries_.data() + size_t{i} * layout.header().node_bytes;
    free_.push_back(i);
  }
}

FrontEnd::~FrontEnd() { static_cast<void>(close()); }

Status FrontEnd::close() {
  HashtableReply reply;
  while (status().ok() && (pending() > 0 || pool_.is_busy() || pool_.count() > 0)) {
    closing_ = pending() == 0;
    if (closing_ && !pool_.is_busy()) expect(pool_.begin_spill());
    collected_ = region_->wait();
    while (take(&reply)) {
    }
  }
  VERBENA_RETURN_IF_ERROR(status());
  status_ = Status(StatusCode::kUnavailable, "this front-end has closed the hashtable");
  return Status::ok_status();
}

const HashtableStatistics& FrontEnd::statistics() const {
  statistics_.refills = pool_.refills();
  statistics_.spills = pool_.spills();
  return statistics_;
}

bool FrontEnd::is_fit(std::string_view key, std::string_view value) {
  const Header& header = layout_.header();
  if (!key.empty() && key.size() <= header.max_key_bytes && value.size() <= header.max_value_bytes)
      [[likely]] {
    return true;
  }
  if (key.empty() || key.size() > header.max_key_bytes) {
    refuse({StatusCode::kInvalidArgument, "a key of this hashtable has 1 to " +
                                              std::to_string(header.max_key_bytes) +
                                              " bytes, not " + std::to_string(key.size())});
  } else {
    refuse({StatusCode::kInvalidArgument, "a value of this hashtable has up to " +
                                              std::to_string(header.max_value_bytes) +
                                              " bytes, not " + std::to_string(value.size())});
  }
  return false;
}

void FrontEnd::refuse(Status status) {
  refusal_ = std::move(status);
  error_ = &refusal_;
}

void FrontEnd::damaged(NodePointer node) {
  status_ =
      Status(StatusCode::kProtocolViolation,
             "the hashtable is damaged at offset " + std::to_string(layout_.offset_bytes(node)) +
                 " of its region: something else writes there; format it anew");
}

}  // namespace hashtable

Result<std::unique_ptr<Hashtable>> Hashtable::open(RemoteRegion& region) {
  using hashtable::FrontEnd;
  using hashtable::Header;
  using hashtable::Layout;
  if (!region.writable()) {
    return Status(StatusCode::kPermissionDenied,
                  "the region is read only, but a hashtable's front-ends write; expose it as "
                  "writable");
  }
  Header header;
  if (region.size_bytes() >= sizeof(header)) {
    VERBENA_ASSIGN_OR_RETURN(header, region.read(RemotePointer<Header>{}));
  } else {
    header.magic = 0;
  }
  VERBENA_ASSIGN_OR_RETURN(const Layout layout, Layout::of(header, region.size_bytes()));
  const RemoteRegionOptions& options = region.options();
  const uint32_t least_pending = hashtable::kOperationsOfOne + hashtable::NodePool::kOperations;
  if (options.value_bytes < header.node_bytes || options.pending < least_pending) {
    return Status(StatusCode::kInvalidArgument,
                  "this hashtable needs a region with value_bytes of " +
                      std::to_string(header.node_bytes) + " and pending of " +
                      std::to_string(least_pending) + ", not " +
                      std::to_string(options.value_bytes) + " and " +
                      std::to_string(options.pending) + "; use hashtable_region_options()");
  }
  const uint32_t pending =
      std::min((options.pending - hashtable::NodePool::kOperations) / hashtable::kOperationsOfOne,
               hashtable::kMostPending);
  return std::unique_ptr<Hashtable>(std::make_unique<FrontEnd>(region, layout, pending));
}

RemoteRegionOptions hashtable_region_options(const HashtableFormat& format, uint32_t pending) {
  RemoteRegionOptions options;
  const Result<hashtable::Layout> layout = hashtable::Layout::of(format);
  // A format that cannot be is refused where the table is made.
  if (layout.ok()) options.value_bytes = layout->header().node_bytes;
  options.pending = std::clamp(pending, 1u, hashtable::kMostPending) * hashtable::kOperationsOfOne +
                    hashtable::NodePool::kOperations;
  options.post_batch = std::min(options.pending, 16u);
  return options;
}

}  // namespace verbena
