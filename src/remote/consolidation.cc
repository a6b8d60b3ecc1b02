#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/block_buffer.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"
#include "verbena/remote_consolidation.h"

namespace verbena::remote {
namespace {

constexpr uint32_t kLeastBlockBytes = 64;
constexpr uint32_t kLeastBlocks = 4;
constexpr uint32_t kMostBlocks = 1u << 20;

Status check_options(const RemoteRegion& region, const ConsolidationOptions& options) {
  const auto wrong = [](std::string what) {
    return Status(StatusCode::kInvalidArgument, std::move(what));
  };
  if (!std::has_single_bit(options.block_bytes) || options.block_bytes < kLeastBlockBytes) {
    return wrong(fmt::format("block_bytes is {}; choose a power of two from {} on",
                             options.block_bytes, kLeastBlockBytes));
  }
  if (options.block_bytes > region.options().value_bytes) {
    return wrong(
        fmt::format("block_bytes is {}, the region was opened with value_bytes {}; open it "
                    "with as many",
                    options.block_bytes, region.options().value_bytes));
  }
  if (options.blocks < kLeastBlocks || options.blocks > kMostBlocks) {
    return wrong(
        fmt::format("blocks is {}; choose {} to {}", options.blocks, kLeastBlocks, kMostBlocks));
  }
  if (options.modifications < 1) return wrong("modifications is 0; choose 1 or more");
  // A block is written and read as a whole.
  for (uint64_t end = region.part_end_bytes(0); end < region.size_bytes();
       end = region.part_end_bytes(end)) {
    if (end % options.block_bytes == 0) continue;
    return wrong(
        fmt::format("block_bytes is {}, and a part of the region ends at offset {}, within a "
                    "block; choose block_bytes of which each part is a multiple",
                    options.block_bytes, end));
  }
  if (!region.writable()) {
    return Status(
        StatusCode::kPermissionDenied,
        "the region can be read only; set ExposedRegionOptions::writable at the back-end");
  }
  return Status::ok_status();
}

class Consolidation final : public ConsolidatedRegion {
 public:
  Consolidation(RemoteRegion& region, const ConsolidationOptions& options, BlockBuffer buffer)
      : options_(options),
        region_(&region),
        buffer_(std::move(buffer)),
        scratch_(options.block_bytes) {}
  ~Consolidation() override { static_cast<void>(close()); }

  Status add_hot_range(uint64_t offset_bytes, uint64_t size_bytes) override;
  using ConsolidatedRegion::read;
  using ConsolidatedRegion::write;
  Status write(uint64_t offset_bytes, std::span<const char> from) override;
  Status read(uint64_t offset_bytes, std::span<char> to) override;
  Status poll() override {
    region_->poll([](const RemoteCompletion&) {});
    return flush_due(now_ns());
  }
  Status flush() override;
  Status close() override;
  const ConsolidationStatistics& statistics() const override { return statistics_; }

 private:
  struct Range {
    uint64_t first = 0;  // in blocks
    uint64_t end = 0;
  };

  Status check_bounds(uint64_t offset_bytes, uint64_t bytes) const;
  bool is_hot(uint64_t number) const {
    const auto has = [number](const Range& range) {
      return number >= range.first && number < range.end;
    };
    return hot_.empty() || std::any_of(hot_.begin(), hot_.end(), has);
  }
  uint64_t begin_of(const Block& block) const { return block.number * options_.block_bytes; }
  uint32_t size_of(const Block& block) const {
    return static_cast<uint32_t>(
        std::min<uint64_t>(options_.block_bytes, region_->size_bytes() - begin_of(block)));
  }
  // Calls part(block number, its first byte in the block, place in the caller's bytes, size) for
  // each block, until one fails.
  template <typename Part>
  Status for_each_part(uint64_t offset_bytes, uint64_t size_bytes, Part&& part) {
    for (uint64_t done = 0; done < size_bytes;) {
      const uint64_t at = offset_bytes + done;
      const auto inner = static_cast<uint32_t>(at % options_.block_bytes);
      const auto bytes = static_cast<uint32_t>(
          std::min<uint64_t>(options_.block_bytes - inner, size_bytes - done));
      VERBENA_RETURN_IF_ERROR(part(at / options_.block_bytes, inner, done, bytes));
      done += bytes;
    }
    return Status::ok_status();
  }

  // The block, with a place of its own; another one may have to go.
  Result<Block*> hold(uint64_t number);
  Status modify(uint64_t number, uint32_t inner, std::span<const char> from, uint64_t at_ns);
  Status load(Block& block);
  Status flush_block(Block& block, uint64_t* counter);
  Status flush_due(uint64_t at_ns);
  Status post(uint64_t offset_bytes, std::span<const char> from);

  const ConsolidationOptions options_;
  RemoteRegion* region_;
  BlockBuffer buffer_;
  std::vector<char> scratch_;
  std::vector<Range> hot_;
  ConsolidationStatistics statistics_;
};

Status Consolidation::check_bounds(uint64_t offset_bytes, uint64_t bytes) const {
  if (!region_->status().ok()) return region_->status();
  if (bytes <= region_->size_bytes() && offset_bytes <= region_->size_bytes() - bytes) {
    return Status::ok_status();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} bytes at offset {} are not all inside of the region of {} bytes; "
                            "choose a smaller offset or size",
                            bytes, offset_bytes, region_->size_bytes()));
}

Status Consolidation::add_hot_range(uint64_t offset_bytes, uint64_t size_bytes) {
  VERBENA_RETURN_IF_ERROR(check_bounds(offset_bytes, size_bytes));
  // Until now all blocks were hot. What is kept of those that are not any more would be written
  // after, and read instead of, what goes to the back-end at once from here on.
  if (hot_.empty()) VERBENA_RETURN_IF_ERROR(close());
  const uint64_t end = offset_bytes + size_bytes;
  hot_.push_back({offset_bytes / options_.block_bytes,
                  (end + options_.block_bytes - 1) / options_.block_bytes});
  return Status::ok_status();
}

Status Consolidation::write(uint64_t offset_bytes, std::span<const char> from) {
  VERBENA_RETURN_IF_ERROR(check_bounds(offset_bytes, from.size()));
  const uint64_t at_ns = now_ns();
  VERBENA_RETURN_IF_ERROR(
      for_each_part(offset_bytes, from.size(),
                    [&](uint64_t number, uint32_t inner, uint64_t place, uint32_t bytes) {
                      const std::span<const char> part = from.subspan(place, bytes);
                      if (is_hot(number)) return modify(number, inner, part, at_ns);
                      ++statistics_.unconsolidated;
                      return region_->write(offset_bytes + place, part);
                    }));
  return flush_due(at_ns);
}

Status Consolidation::modify(uint64_t number, uint32_t inner, std::span<const char> from,
                             uint64_t at_ns) {
  VERBENA_ASSIGN_OR_RETURN(Block* const block, hold(number));
  copy_bytes(buffer_.bytes(*block) + inner, from.data(), from.size());
  buffer_.dirty(*block).set(inner, inner + static_cast<uint32_t>(from.size()));
  ++statistics_.modifications;
  if (block->modifications++ == 0) {
    block->lease_end_ns = end_of_ns(at_ns, options_.lease_ns);
    buffer_.append(*block);
  }
  if (block->modifications < options_.modifications) return Status::ok_status();
  return flush_block(*block, &statistics_.full_flushes);
}

Status Consolidation::read(uint64_t offset_bytes, std::span<char> to) {
  VERBENA_RETURN_IF_ERROR(check_bounds(offset_bytes, to.size()));
  return for_each_part(
      offset_bytes, to.size(),
      [&](uint64_t number, uint32_t inner, uint64_t place, uint32_t bytes) -> Status {
        const std::span<char> part = to.subspan(place, bytes);
        Block* block = buffer_.find(number);
        if (options_.exclusive && is_hot(number) && (block == nullptr || !block->loaded)) {
          VERBENA_ASSIGN_OR_RETURN(block, hold(number));
          VERBENA_RETURN_IF_ERROR(load(*block));
        }
        if (block != nullptr &&
            (block->loaded || buffer_.dirty(*block).all(inner, inner + bytes))) {
          ++statistics_.local_reads;
          copy_bytes(part.data(), buffer_.bytes(*block) + inner, bytes);
          return Status::ok_status();
        }
        VERBENA_RETURN_IF_ERROR(region_->read(offset_bytes + place, part));
        if (block == nullptr || block->modifications == 0) return Status::ok_status();
        // One's own writes, over what the back-end has.
        const DirtyBits dirty = buffer_.dirty(*block);
        for (DirtyBits::Run run = dirty.next(inner); run.begin < inner + bytes;
             run = dirty.next(run.end)) {
          const uint32_t end = std::min(run.end, inner + bytes);
          copy_bytes(part.data() + (run.begin - inner), buffer_.bytes(*block) + run.begin,
                     end - run.begin);
        }
        return Status::ok_status();
      });
}

Result<Block*> Consolidation::hold(uint64_t number) {
  if (Block* const block = buffer_.find(number)) return block;
  Block& block = buffer_.place_for(number);
  if (block.modifications > 0) {
    VERBENA_RETURN_IF_ERROR(flush_block(block, &statistics_.evicting_flushes));
  }
  buffer_.reset(block, number);
  return &block;
}

Status Consolidation::load(Block& block) {
  const uint32_t size_bytes = size_of(block);
  VERBENA_RETURN_IF_ERROR(
      region_->read(begin_of(block), std::span<char>(scratch_).first(size_bytes)));
  const DirtyBits dirty = buffer_.dirty(block);
  char* const bytes = buffer_.bytes(block);
  for (DirtyBits::Run run = dirty.next(0); !run.empty(); run = dirty.next(run.end)) {
    copy_bytes(scratch_.data() + run.begin, bytes + run.begin, run.end - run.begin);
  }
  copy_bytes(bytes, scratch_.data(), size_bytes);
  block.loaded = true;
  ++statistics_.loads;
  return Status::ok_status();
}

Status Consolidation::flush_block(Block& block, uint64_t* counter) {
  DirtyBits dirty = buffer_.dirty(block);
  const char* const bytes = buffer_.bytes(block);
  const DirtyBits::Run hull = dirty.hull();
  if (options_.exclusive) {
    // What lies between the modified bytes has to be known to be written with them.
    const bool has_gaps = !dirty.all(hull.begin, hull.end);
    if (has_gaps && !block.loaded) VERBENA_RETURN_IF_ERROR(load(block));
    VERBENA_RETURN_IF_ERROR(
        post(begin_of(block) + hull.begin, {bytes + hull.begin, hull.end - hull.begin}));
  } else {
    for (DirtyBits::Run run = dirty.next(0); !run.empty(); run = dirty.next(run.end)) {
      VERBENA_RETURN_IF_ERROR(
          post(begin_of(block) + run.begin, {bytes + run.begin, run.end - run.begin}));
    }
  }
  dirty.clear();
  buffer_.remove(block);
  block.modifications = 0;
  ++*counter;
  return Status::ok_status();
}

Status Consolidation::flush_due(uint64_t at_ns) {
  for (Block* block = buffer_.first_modified(); block != nullptr && block->lease_end_ns <= at_ns;
       block = buffer_.first_modified()) {
    VERBENA_RETURN_IF_ERROR(flush_block(*block, &statistics_.due_flushes));
  }
  return region_->status();
}

// The region copies the bytes, so the block may be modified again at once.
Status Consolidation::post(uint64_t offset_bytes, std::span<const char> from) {
  Waiter waiter;
  for (;;) {
    switch (region_->post_write(offset_bytes, from, /*token=*/0)) {
      case PostResult::kPosted:
        return Status::ok_status();
      case PostResult::kFailed:
        return region_->error();
      case PostResult::kWouldBlock:
        if (region_->poll([](const RemoteCompletion&) {}) == 0) waiter.idle();
    }
  }
}

Status Consolidation::flush() {
  while (Block* const block = buffer_.first_modified()) {
    VERBENA_RETURN_IF_ERROR(flush_block(*block, &statistics_.asked_flushes));
  }
  Waiter waiter;
  while (region_->status().ok() && region_->outstanding() > 0) {
    if (region_->poll([](const RemoteCompletion&) {}) == 0) waiter.idle();
  }
  return region_->status();
}

Status Consolidation::close() {
  VERBENA_RETURN_IF_ERROR(flush());
  for (Block& block : buffer_.all()) buffer_.reset(block, Block::kNone);
  return Status::ok_status();
}

}  // namespace
}  // namespace verbena::remote

namespace verbena {

Result<std::unique_ptr<ConsolidatedRegion>> ConsolidatedRegion::create(
    RemoteRegion& region, const ConsolidationOptions& options) {
  VERBENA_RETURN_IF_ERROR(remote::check_options(region, options));
  VERBENA_ASSIGN_OR_RETURN(
      remote::BlockBuffer buffer,
      remote::BlockBuffer::create(std::bit_ceil(options.blocks), options.block_bytes));
  return std::unique_ptr<ConsolidatedRegion>(
      std::make_unique<remote::Consolidation>(region, options, std::move(buffer)));
}

}  // namespace verbena
