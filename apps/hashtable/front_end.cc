#include "hashtable/front_end.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "verbena/clock.h"

namespace verbena {
namespace hashtable {
namespace {

constexpr uint64_t kShortNs = 1'000;

// Of an operation: its node, and with a hot area the value of one that forwards.
uint64_t stride_bytes(const Layout& layout) {
  const Header& header = layout.header();
  return header.node_bytes + (layout.has_hot_area() ? header.max_value_bytes : 0);
}

}  // namespace

FrontEnd::FrontEnd(RemoteRegion& region, const Layout& layout, const HashtableOptions& options,
                   uint32_t pending_limit)
    : region_(&region),
      layout_(layout),
      nodes_(layout.nodes()),
      options_(options),
      pending_limit_(pending_limit),
      buffers_(RegionNeeds::write_backs(options) > 0),
      last_operation_(pending_limit + RegionNeeds::write_backs(options)),
      pool_room_((pending_limit + 2 + RegionNeeds::write_backs(options)) * (kMostNodes + 1)),
      pool_(region, nodes_, kPoolToken, SpareNodes::kMany + 2 * pool_room_),
      operations_(pending_limit +
                  (layout.has_hot_area() ? 1 + RegionNeeds::write_backs(options) : 0)),
      entries_(operations_.size() * stride_bytes(layout)),
      turns_(operations_, pending_limit + RegionNeeds::write_backs(options)),
      copy_(layout.header().node_bytes),
      full_(StatusCode::kLimitExceeded,
            "the hashtable is full: the " + std::to_string(layout.header().entries) +
                " entries that it was formatted for are in use, and what was spare; remove "
                "entries, or format a larger one"),
      crowded_(StatusCode::kLimitExceeded,
               "the hashtable has " + std::to_string(kMostNodes) +
                   " other entries with this key's hash, and no room for more; format it with "
                   "another hash_seed"),
      no_copy_(StatusCode::kLimitExceeded,
               "the hashtable has no spare block for a modification in the hot area: more "
               "front-ends use it than the max_front_ends it was formatted for, or have died; "
               "close some, or call reclaim_hashtable()") {
  free_.reserve(pending_limit);
  waiting_.reserve(operations_.size());
  finished_.reserve(pending_limit);
  acknowledged_.reserve(pending_limit);
  for (uint32_t i = 0; i < operations_.size(); ++i) {
    operations_[i].node = entries_.data() + i * stride_bytes(layout);
    operations_[i].forward_bytes = operations_[i].node + layout.header().node_bytes;
  }
  for (uint32_t i = pending_limit; i-- > 0;) free_.push_back(i);
  for (uint32_t i = pending_limit + 1; i < operations_.size(); ++i) {
    operations_[i].is_write_back = true;
    free_write_backs_.push_back(i);
  }
  if (layout.has_hot_area()) hot_.emplace(region, layout, options, operations_);
}

FrontEnd::~FrontEnd() {
  static_cast<void>(close());
  // After a failure: what is still on its way must not meet the region's next user.
  for (uint32_t done = collected_; region_->status().ok() && region_->outstanding() > 0;
       done = region_->wait()) {
    for (; done > 0; --done) region_->take();
  }
}

Status FrontEnd::flush() {
  if (pending() > 0) {
    refuse({StatusCode::kInvalidArgument,
            std::to_string(pending()) +
                " operations are pending; poll until there are none before flush()"});
    return refusal_;
  }
  return write_all_back();
}

Status FrontEnd::write_all_back() {
  HashtableReply reply;
  bool stuck = false;
  // Whatever finds no room, everything else is published.
  while (buffers_ && status().ok() && hot_->has_kept() && !stuck) {
    hot_->write_back();
    do {
      wait();
      while (take(&reply)) {
      }
    } while (status().ok() && hot_->is_writing_back());
    stuck = hot_->end_write_back();
  }
  VERBENA_RETURN_IF_ERROR(status());
  if (!stuck || !hot_->has_kept()) return Status::ok_status();
  return {StatusCode::kLimitExceeded,
          "an update that was answered before it was published finds no room: its key was removed "
          "by another front-end, and the hashtable is full; remove entries, then flush again"};
}

Status FrontEnd::close() {
  HashtableReply reply;
  if (buffers_) hot_->give_up_stuck(true);
  while (status().ok() && pending() > 0) {
    wait();
    while (take(&reply)) {
    }
  }
  const Status written = write_all_back();
  const auto gives_back = [this] {
    closing_ = pending() == 0 && !demotes_;
    if (!closing_) return true;
    if (!pool_.is_busy() && pool_.count() > 0) expect(pool_.begin_spill());
    const bool gives_copies = hot_.has_value() && hot_->begin_spill();
    return gives_copies || pool_.is_busy();
  };
  while (status().ok() && gives_back()) {
    wait();
    while (take(&reply)) {
    }
  }
  VERBENA_RETURN_IF_ERROR(status());
  status_ = Status(StatusCode::kUnavailable, "this front-end has closed the hashtable");
  return written;
}

void FrontEnd::wait() {
  deliverable_ = acknowledged_.size();
  if (deliverable_ > 0) return;
  if (hot_.has_value()) {
    hot_->hurry(0);
    poll_hot_area();
    // Nothing but time ends the wait for a lock.
    if (region_->outstanding() == 0 && hot_->waits_for_time()) return sleep_ns(kShortNs);
  }
  collected_ = region_->wait();
}

const HashtableStatistics& FrontEnd::statistics() const {
  if (hot_.has_value()) hot_->add_to(&statistics_);
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

void FrontEnd::damaged(uint64_t offset_bytes) {
  status_ = Status(StatusCode::kProtocolViolation,
                   "the hashtable is damaged at offset " + std::to_string(offset_bytes) +
                       " of its region: something else writes there; format it anew");
}

Status check(const HashtableOptions& options) {
  const auto refused = [](const char* what, uint64_t asked, const char* range) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(what) + " is " + std::to_string(asked) + "; choose " + range);
  };
  if (options.offset_bytes % 64 != 0) {
    return refused("offset_bytes", options.offset_bytes, "a multiple of 64");
  }
  if (options.hot_modifications < 1) return refused("hot_modifications", 0, "1 or more");
  if (options.hot_after < 1 || options.hot_after > HotSketch::kMost) {
    return refused("hot_after", options.hot_after, "1 to 255");
  }
  if (options.hot_patience < 1) return refused("hot_patience", 0, "1 or more");
  return Status::ok_status();
}

Status check_buffering(const HashtableOptions& options, const Header& header) {
  constexpr uint64_t kMostLossNs = 10'000'000'000;
  if (header.hot_blocks == 0) {
    return {StatusCode::kInvalidArgument,
            "acknowledgement is kBuffered, but this hashtable has no hot area; format it with "
            "hot_blocks, or choose kPublished"};
  }
  const uint64_t least_ns = 2 * header.hot_lock_lease_ns;
  if (least_ns > kMostLossNs) {
    return {StatusCode::kInvalidArgument,
            "acknowledgement is kBuffered, but this hashtable's hot_lock_lease_ns is " +
                std::to_string(header.hot_lock_lease_ns) + ", and the most for that is " +
                std::to_string(kMostLossNs / 2) +
                ": half of the longest loss window; format it with a shorter one, or choose "
                "kPublished"};
  }
  if (options.loss_window_ns >= least_ns && options.loss_window_ns <= kMostLossNs) {
    return Status::ok_status();
  }
  return {StatusCode::kInvalidArgument,
          "loss_window_ns is " + std::to_string(options.loss_window_ns) + "; choose " +
              std::to_string(least_ns) + " (twice the table's hot_lock_lease_ns) to " +
              std::to_string(kMostLossNs)};
}

}  // namespace hashtable

Result<std::unique_ptr<Hashtable>> Hashtable::open(RemoteRegion& region,
                                                   const HashtableOptions& options) {
  using hashtable::FrontEnd;
  using hashtable::Header;
  using hashtable::Layout;
  if (!region.writable()) {
    return Status(StatusCode::kPermissionDenied,
                  "the region is read only, but a hashtable's front-ends write; expose it as "
                  "writable");
  }
  VERBENA_RETURN_IF_ERROR(hashtable::check(options));
  const uint64_t base_bytes = options.offset_bytes;
  const uint64_t size_bytes = region.size_bytes() - std::min(base_bytes, region.size_bytes());
  Header header;
  if (size_bytes >= sizeof(header)) {
    VERBENA_ASSIGN_OR_RETURN(header, region.read(RemotePointer<Header>{base_bytes}));
  } else {
    header.magic = 0;
  }
  VERBENA_ASSIGN_OR_RETURN(const Layout layout, Layout::of(header, size_bytes, base_bytes));
  if (options.acknowledgement == HashtableAcknowledgement::kBuffered) {
    VERBENA_RETURN_IF_ERROR(hashtable::check_buffering(options, layout.header()));
  }
  const RemoteRegionOptions& of_region = region.options();
  const auto needs = hashtable::RegionNeeds::of(layout.has_hot_area(), options);
  const uint32_t least_pending = needs.operations_of_one + needs.more_operations;
  if (of_region.value_bytes < layout.largest_bytes() || of_region.pending < least_pending) {
    return Status(StatusCode::kInvalidArgument,
                  "this hashtable needs a region with value_bytes of " +
                      std::to_string(layout.largest_bytes()) + " and pending of " +
                      std::to_string(least_pending) + ", not " +
                      std::to_string(of_region.value_bytes) + " and " +
                      std::to_string(of_region.pending) + "; use hashtable_region_options()");
  }
  const uint32_t pending =
      std::min((of_region.pending - needs.more_operations) / needs.operations_of_one,
               hashtable::kMostPending);
  return std::unique_ptr<Hashtable>(std::make_unique<FrontEnd>(region, layout, options, pending));
}

RemoteRegionOptions hashtable_region_options(const HashtableFormat& format, uint32_t pending,
                                             const HashtableOptions& of_front_end) {
  RemoteRegionOptions options;
  const Result<hashtable::Layout> layout = hashtable::Layout::of(format);
  // A format that cannot be is refused where the table is made.
  if (layout.ok()) options.value_bytes = layout->largest_bytes();
  const auto needs =
      hashtable::RegionNeeds::of(layout.ok() && layout->has_hot_area(), of_front_end);
  options.pending = std::clamp(pending, 1u, hashtable::kMostPending) * needs.operations_of_one +
                    needs.more_operations;
  options.post_batch = std::min(options.pending, 16u);
  return options;
}

}  // namespace verbena
